"""Units' present state: `tidemill status`."""

"""Everything that touches a cluster or this machine's processes, and the `tidemill` command."""

"""Units' present state."""

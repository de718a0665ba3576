"""The present state of units."""

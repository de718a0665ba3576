"""The nodes there are."""

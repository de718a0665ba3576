"""A spec and its planning results, computed on first use."""

"""A spec and its results, computed on first use."""

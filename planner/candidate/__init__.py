"""A spec and everything planned from it, computed on first use."""

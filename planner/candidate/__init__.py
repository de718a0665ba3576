"""A spec as far as it has been thought through."""

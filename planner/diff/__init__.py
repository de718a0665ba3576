"""The effects of changing from one plan to another."""

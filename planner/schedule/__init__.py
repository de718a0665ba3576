"""Which units are on when."""

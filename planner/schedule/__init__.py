"""Which units are on at which time of the day."""

"""The units that are on at each time of the day."""

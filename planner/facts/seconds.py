"""How many of the smaller units of time a second has: figures are told in them, and computed in seconds."""

__all__ = ["MS_PER_S", "US_PER_S"]

MS_PER_S = 1e3
US_PER_S = 1e6

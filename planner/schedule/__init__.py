"""The day: which units are on when, from traffic or as written."""

"""The minutes and seconds of a day, and how clocks write them."""

__all__ = ["DAY_MINUTES", "DAY_S", "HOUR_MINUTES", "MINUTE_S", "hh_mm", "hh_mm_ss", "minute_of", "second_of"]

MINUTE_S = 60
HOUR_MINUTES = 60
DAY_MINUTES = 24 * HOUR_MINUTES
DAY_S = DAY_MINUTES * MINUTE_S


def minute_of(at: str) -> int:
    """Return the minutes from midnight of `HH:MM`."""
    return HOUR_MINUTES * int(at[:2]) + int(at[3:])


def second_of(at: str) -> int:
    """Return the seconds from midnight of `HH:MM` or `HH:MM:SS`."""
    return minute_of(at[:5]) * MINUTE_S + int(at[6:] or 0)


def hh_mm(minute: int) -> str:
    """Return what a clock shows `minute` minutes after midnight; after a day it begins again."""
    minute %= DAY_MINUTES
    return f"{minute // HOUR_MINUTES:02}:{minute % HOUR_MINUTES:02}"


def hh_mm_ss(second: float) -> str:
    """Return what a clock shows `second` seconds after midnight, to the nearest second; after a day it begins again."""
    whole = round(second) % DAY_S
    return f"{hh_mm(whole // MINUTE_S)}:{whole % MINUTE_S:02}"

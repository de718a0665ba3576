"""Minutes and seconds of a day, and their text as times."""

from collections.abc import Iterable

MINUTE_S = 60
HOUR_MINUTES = 60
DAY_MINUTES = 24 * HOUR_MINUTES
DAY_S = DAY_MINUTES * MINUTE_S


def minute_of(at: str) -> int:
    """Return the minutes from midnight to `at`, which is `HH:MM`."""
    return HOUR_MINUTES * int(at[:2]) + int(at[3:])


def second_of(at: str) -> int:
    """Return the seconds from midnight to `at`, which is `HH:MM:SS`."""
    return MINUTE_S * minute_of(at[:5]) + int(at[6:])


def hh_mm(minute: int) -> str:
    """Return the time `minute` minutes after midnight, modulo a day."""
    minute %= DAY_MINUTES
    return f"{minute // HOUR_MINUTES:02}:{minute % HOUR_MINUTES:02}"


def hh_mm_ss(second: float) -> str:
    """Return the time `second` seconds after midnight, modulo a day, to the nearest second."""
    whole = round(second) % DAY_S
    return f"{hh_mm(whole // MINUTE_S)}:{whole % MINUTE_S:02}"


def periods(stretches: Iterable[tuple[int, int]]) -> str:
    """Write stretches of a day, (first minute, number of minutes), as text: `22:00-06:00`.

    Adjacent stretches are joined, also at midnight. Stretches must not overlap.
    """
    ends: dict[int, int] = {}  # first minute -> the minute after the last
    for start, minutes in sorted(stretches):
        met = next((first for first, end in ends.items() if end == start), start)
        ends[met] = start + minutes
    last = max(ends, default=0)
    if len(ends) > 1 and (first := ends[last] - DAY_MINUTES) in ends:
        ends[last] = ends.pop(first) + DAY_MINUTES
    if any(end - start == DAY_MINUTES for start, end in ends.items()):
        return "all day"
    return ", ".join(f"{hh_mm(start)}-{hh_mm(end)}" for start, end in ends.items())

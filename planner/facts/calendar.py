"""Names of days: `saturday` for all Saturdays, `2026-12-24` for one day. A date takes precedence over its weekday."""

from collections.abc import Sequence
from typing import Final

from planner.facts.wall_clock import date_before, is_date, next_date, weekday_of

__all__ = ["WEEKDAYS", "entry_of", "is_day", "week_around"]

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def is_day(written: str) -> bool:
    """Return whether `written` names a weekday, or a date."""
    return written in WEEKDAYS or is_date(written)


def entry_of(day: str, entries: Sequence[Sequence[str]]) -> int | None:
    """Return the index of the entry (a list of days) that has the date `day`, or else its weekday; None if none has."""
    names = (day,) if day in WEEKDAYS else (day, WEEKDAYS[weekday_of(day)])
    return next((index for name in names for index, days in enumerate(entries) if name in days), None)


def week_around(day: str) -> tuple[str, ...]:
    """Return seven consecutive days with `day` as the second: weekdays for a weekday, dates for a date."""
    if day in WEEKDAYS:
        first = WEEKDAYS.index(day) - 1
        return tuple(WEEKDAYS[(first + ahead) % len(WEEKDAYS)] for ahead in range(len(WEEKDAYS)))
    found = [date_before(day)]
    while len(found) < len(WEEKDAYS):
        found.append(next_date(found[-1]))
    return tuple(found)

"""Days, dates and the clocks of time zones.

A day is a weekday, `saturday` for all Saturdays, or a date, `2026-12-24`, which takes precedence over its weekday. An
instant is a number of seconds since 1970-01-01 00:00 UTC. Zones and their data come from the package `tzdata`, so they
are the same on every machine; `zoneinfo` would prefer the machine's own. `UTC+8` is no zone, and it is ambiguous: in
POSIX and the IANA's `Etc` zones +8 is west of UTC, for people east.

This is the only file of the planner that knows dates, and it never reads a clock.

Source: tz database, file `etcetera`, on the signs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from planner.problems.fix import is_misspelling

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass(frozen=True)
class WallTime:
    """A date and a minute as clocks show them. When clocks go back, two instants have the same value."""

    date: str  # YYYY-MM-DD
    minute: int  # minutes from midnight


def is_day(written: str) -> bool:
    """Return whether `written` names a weekday, or a date."""
    return written in WEEKDAYS or is_date(written)


def is_date(written: str) -> bool:
    """Return whether `written` is a date, YYYY-MM-DD, of any year but the calendar's first and last."""
    try:
        day = date.fromisoformat(written)
    except ValueError:
        return False
    return day.isoformat() == written and date.min.year < day.year < date.max.year


def entry_of(day: str, entries: Sequence[Sequence[str]]) -> int | None:
    """Return the index of the entry (a list of days) that names `day`, else of the one that names its weekday.

    Return None if no entry names either.
    """
    names = (day,) if day in WEEKDAYS else (day, WEEKDAYS[weekday_of(day)])
    return next((index for name in names for index, days in enumerate(entries) if name in days), None)


def week_around(day: str) -> tuple[str, ...]:
    """Return seven consecutive days, of which `day` is the second: weekdays for a weekday, dates for a date."""
    if day in WEEKDAYS:
        first = WEEKDAYS.index(day) - 1
        return tuple(WEEKDAYS[(first + ahead) % len(WEEKDAYS)] for ahead in range(len(WEEKDAYS)))
    return tuple(date_after(day, ahead - 1) for ahead in range(len(WEEKDAYS)))


def weekday_of(day: str) -> int:
    """Return the weekday of a date: 0 is Monday."""
    return date.fromisoformat(day).weekday()


def date_after(day: str, days: int) -> str:
    """Return the date that is `days` days after `day`, or before it if `days` is negative."""
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()


def days_between(first: str, last: str) -> int:
    """Return the number of days from the date `first` to the date `last`."""
    return (date.fromisoformat(last) - date.fromisoformat(first)).days


def is_timezone(name: str) -> bool:
    """Return whether `name` is an IANA time zone."""
    return name in _zones()


def nearest_timezone(written: str) -> str | None:
    """Return the time zone that `written` means. It may be a misspelt zone, or the name of a city alone.

    Return None if no zone is near.
    """
    parts = ((zone, part) for zone in sorted(_zones()) for part in (zone, zone.rpartition("/")[2]))
    return next((zone for zone, part in parts if is_misspelling(written, part)), None)


def wall_time(instant: int, zone: str) -> WallTime:
    """Return the wall-clock time in `zone` at an instant."""
    return _shown(datetime.fromtimestamp(instant, _zone(zone)))


def offset_at(instant: int, zone: str) -> int:
    """Return the seconds by which `zone` is ahead of UTC at an instant."""
    offset = datetime.fromtimestamp(instant, _zone(zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def instants_of(day: str, minute: int, zone: str) -> tuple[int, ...]:
    """Return the instants at which clocks in `zone` show `minute` on `day`: one, two, or none if clocks skip it."""
    local = datetime.fromisoformat(day) + timedelta(minutes=minute)
    both = {round(local.replace(tzinfo=_zone(zone), fold=fold).timestamp()) for fold in (0, 1)}
    return tuple(sorted(each for each in both if wall_time(each, zone) == _shown(local)))


def dates_between(begin: int, end: int, zone: str) -> tuple[str, ...]:
    """Return all dates in `zone` from the date of the instant `begin` to the date of `end`, both included."""
    first, last = (wall_time(each, zone).date for each in (begin, end))
    return tuple(date_after(first, days) for days in range(days_between(first, last) + 1))


def _shown(local: datetime) -> WallTime:
    return WallTime(local.date().isoformat(), local.hour * 60 + local.minute)


@cache
def _zones() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())


@cache
def _zone(name: str) -> ZoneInfo | timezone:
    if name == "UTC":
        return UTC
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)

"""Wall-clock times of a time zone at an instant, by IANA data.

An instant is a number of seconds since 1970-01-01 00:00 UTC. Data come from the package `tzdata`, so they are the same
on every machine. This is the only file of the planner that knows dates, and it never reads a clock.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

__all__ = [
    "WallTime",
    "date_before",
    "dates_between",
    "days_between",
    "instants_of",
    "is_date",
    "next_date",
    "offset_at",
    "wall_time",
    "weekday_of",
]


@dataclass(frozen=True)
class WallTime:
    """A date and a minute of the day. A minute that clocks show twice has one value."""

    date: str  # YYYY-MM-DD
    weekday: int  # 0 is Monday
    minute: int  # from midnight


def wall_time(instant: int, zone: str) -> WallTime:
    """Return the wall-clock time in `zone` at an instant."""
    local = datetime.fromtimestamp(instant, _zone(zone))
    return WallTime(local.date().isoformat(), local.weekday(), local.hour * 60 + local.minute)


def offset_at(instant: int, zone: str) -> int:
    """Return the seconds by which `zone` is ahead of UTC at an instant."""
    offset = datetime.fromtimestamp(instant, _zone(zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def instants_of(day: str, minute: int, zone: str) -> tuple[int, ...]:
    """Return the instants of a minute of a day in `zone`: one, two, or none if clocks skip it."""
    local = datetime.fromisoformat(day) + timedelta(minutes=minute)
    both = {round(local.replace(tzinfo=_zone(zone), fold=fold).timestamp()) for fold in (0, 1)}
    return tuple(sorted(each for each in both if wall_time(each, zone) == _shown(local)))


def dates_between(begin: int, end: int, zone: str) -> tuple[str, ...]:
    """Return the dates in `zone` from one instant to another."""
    first, last = (date.fromisoformat(wall_time(each, zone).date) for each in (begin, end))
    return tuple((first + timedelta(days=days)).isoformat() for days in range((last - first).days + 1))


def weekday_of(day: str) -> int:
    """Return the weekday of a date: 0 is Monday."""
    return date.fromisoformat(day).weekday()


def next_date(day: str) -> str:
    """Return the date after another one."""
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()


def date_before(day: str) -> str:
    """Return the date before another one."""
    return (date.fromisoformat(day) - timedelta(days=1)).isoformat()


def days_between(first: str, last: str) -> int:
    """Return the days from one date to another."""
    return (date.fromisoformat(last) - date.fromisoformat(first)).days


def is_date(written: str) -> bool:
    """Return whether `written` is a date, as YYYY-MM-DD, with a whole year of the calendar before it and after it."""
    try:
        day = date.fromisoformat(written)
    except ValueError:
        return False
    return day.isoformat() == written and date.min.year < day.year < date.max.year


def _shown(local: datetime) -> WallTime:
    return WallTime(local.date().isoformat(), local.weekday(), local.hour * 60 + local.minute)


@cache
def _zone(name: str) -> ZoneInfo | timezone:
    """Return the zone from `tzdata`, because the machine's own data may be older."""
    if name == "UTC":
        return UTC
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)

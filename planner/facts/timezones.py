"""The time zones that the IANA names.

Names come from the package `tzdata`, which has the IANA's data on every machine alike; `zoneinfo` would ask the
machine's own data first. `UTC+8` is no name, and nobody can tell which way it counts: POSIX and the IANA's `Etc` zones
count hours that a place is behind, people those that it is ahead.

Source: tz database, file `etcetera`, on the signs.
"""

from functools import cache
from importlib.resources import files

from planner.problems.fix import is_misspelling

__all__ = ["is_timezone", "nearest_timezone"]


def is_timezone(name: str) -> bool:
    """Return whether the IANA has a zone of that name."""
    return name in _zones()


def nearest_timezone(written: str) -> str | None:
    """Return the zone that `written` misspells, whole or its city alone; None where there is no such zone."""
    parts = ((zone, part) for zone in sorted(_zones()) for part in (zone, zone.rpartition("/")[2]))
    return next((zone for zone, part in parts if is_misspelling(written, part)), None)


@cache
def _zones() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())

"""The names of IANA time zones.

Names come from the package `tzdata`, so they are the same on every machine; `zoneinfo` would prefer the machine's own
data. `UTC+8` is no name, and it is ambiguous: in POSIX and the IANA's `Etc` zones +8 is west of UTC, for people east.

Source: tz database, file `etcetera`, on the signs.
"""

from functools import cache
from importlib.resources import files

from planner.problems.fix import is_misspelling

__all__ = ["is_timezone", "nearest_timezone"]


def is_timezone(name: str) -> bool:
    """Return whether `name` is an IANA time zone."""
    return name in _zones()


def nearest_timezone(written: str) -> str | None:
    """Return the zone that `written`, a name or only its city, misspells; None if there is none."""
    parts = ((zone, part) for zone in sorted(_zones()) for part in (zone, zone.rpartition("/")[2]))
    return next((zone for zone, part in parts if is_misspelling(written, part)), None)


@cache
def _zones() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())

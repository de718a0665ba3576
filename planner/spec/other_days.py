"""The days that an entry of `other_days` is about, and the rules of their names: of demand and of windows alike."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from planner.facts.calendar import WEEKDAYS, is_day
from planner.problems.fix import Fix, did_you_mean, for_example, removal
from planner.spec.rule import Broken

__all__ = ["MAX_OTHER_DAYS", "DayNames", "wrong_days"]

MAX_OTHER_DAYS = 366
SHORTEST = 3  # letters of a weekday that say which one it is

DayNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=10)]],
    Field(
        min_length=1,
        max_length=MAX_OTHER_DAYS,
        description="Weekdays, and dates as 2026-12-24, in the schedule's time zone.",
        examples=[["saturday", "sunday", "2026-12-24"]],
    ),
]


def wrong_days(place: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """Break the rules of each name in `entries`, which stand at `place`, that is no day or stands there twice."""
    first: dict[str, str] = {}
    for entry, each in enumerate(entries):
        for index, name in enumerate(each.get("days", ())):
            path = f"{place}.{entry}.days.{index}"
            if not is_day(name):
                rule = "S525 must be a weekday, or a date as 2026-12-24"
                yield Broken(rule, "the calendar has no other days", _meant(name), path, name)
            elif name in first:
                rule, reason = f"S526 must differ from {first[name]}", "a day can be in one entry only"
                fix = removal(path if len(each["days"]) > 1 else f"{place}.{entry}")
                yield Broken(rule, reason, fix, path, name)
            first.setdefault(name, path)


def _meant(name: str) -> Fix:
    """Ask for the weekday whose first letters `name` has; else an example."""
    plain = name.strip().casefold()
    begins = [day for day in WEEKDAYS if len(plain) >= SHORTEST and day.startswith(plain[:SHORTEST])]
    return did_you_mean(begins[0], begins) if begins else for_example("saturday, or 2026-12-24")

"""The days that an entry of `other_days` is about, and the rules of their names: of demand and of windows alike."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from planner.facts.calendar import WEEKDAYS, is_day
from planner.facts.wall_clock import is_date
from planner.problems.fix import HERE, Fix, for_example, removal
from planner.spec.rule import Broken

__all__ = ["MAX_OTHER_DAYS", "DayNames", "wrong_days"]

MAX_OTHER_DAYS = 366
YEAR_FIRST = re.compile(r"([0-9]{4})[./]?([0-9]{1,2})[./]?([0-9]{1,2})")
YEAR_LAST = re.compile(r"([0-9]{1,2})([./-])([0-9]{1,2})\2([0-9]{4})")
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
    """Offer the weekday that `name` begins like, or the date that it is in another form, else an example."""
    if found := _dates(name):
        return Fix(f"did you mean {found[0]}?", ({HERE: found[0]},)) if len(found) == 1 else for_example("2026-12-24")
    plain = name.strip().casefold().removesuffix("s")
    begins = [day for day in WEEKDAYS if len(plain) >= SHORTEST and day.startswith(plain[:SHORTEST])]
    return Fix(f"did you mean {begins[0]}?", ({HERE: begins[0]},)) if begins else for_example("saturday")


def _dates(written: str) -> list[str]:
    """Return the dates that `written` may be in another form: two where day and month could be either number."""
    orders: list[tuple[str, str, str]] = []
    if match := YEAR_FIRST.fullmatch(written):
        orders = [(match[1], match[2], match[3])]
    elif match := YEAR_LAST.fullmatch(written):
        orders = [(match[4], match[3], match[1])]
        if match[2] != ".":  # with dots, the day comes first everywhere
            orders.append((match[4], match[1], match[3]))
    dates = dict.fromkeys(f"{year}-{month:0>2}-{day:0>2}" for year, month, day in orders)
    return [each for each in dates if is_date(each)]

"""Rules of lists by time: entries that hold from a time of day until the next one's, and entries about named days."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.calendar import WEEKDAYS, is_day
from planner.problems.finding import Finding
from planner.problems.fix import Fix, did_you_mean, for_example, removal

__all__ = ["at_different_times", "wrong_days"]

SHORTEST = 3  # letters of a weekday that say which one it is


def at_different_times(rule: str, place: str, entries: Sequence[Mapping[str, Any]], reason: str) -> Iterator[Finding]:
    """Break the rule of that id for each of the `entries` at `place` whose `at` an earlier one has."""
    first: dict[str, int] = {}
    for index, at in ((index, each["at"]) for index, each in enumerate(entries) if "at" in each):
        if at in first:
            must = f"{rule} must differ from {place}.{first[at]}.at"
            yield Finding(f"{place}.{index}.at", at, must, reason, "write a time of its own, or remove one of the two")
        first.setdefault(at, index)


def wrong_days(place: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Break the rules of each name in `entries`, which stand at `place`, that is no day or stands there twice."""
    first: dict[str, str] = {}
    for entry, each in enumerate(entries):
        for index, name in enumerate(each.get("days", ())):
            path = f"{place}.{entry}.days.{index}"
            if not is_day(name):
                rule = "S525 must be a weekday, or a date as 2026-12-24"
                yield Finding(path, name, rule, "the calendar has no other days", _meant(name))
            elif name in first:
                rule, reason = f"S526 must differ from {first[name]}", "a day can be in one entry only"
                fix = removal(path if len(each["days"]) > 1 else f"{place}.{entry}")
                yield Finding(path, name, rule, reason, fix)
            first.setdefault(name, path)


def _meant(name: str) -> Fix:
    """Ask for the weekday whose first letters `name` has; else an example."""
    plain = name.strip().casefold()
    begins = [day for day in WEEKDAYS if len(plain) >= SHORTEST and day.startswith(plain[:SHORTEST])]
    return did_you_mean(begins[0], begins) if begins else for_example("saturday, or 2026-12-24")

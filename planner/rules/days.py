"""Rules of lists by time: entries that hold from a time of day until the next one's, and entries about named days."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.problems.finding import Finding
from planner.problems.fix import removal

__all__ = ["at_different_times", "days_listed_twice"]


def at_different_times(place: str, entries: Sequence[Mapping[str, Any]], reason: str) -> Iterator[Finding]:
    """Yield each of the `entries` at `place` whose `at` an earlier one has."""
    first: dict[str, int] = {}
    for index, at in ((index, each["at"]) for index, each in enumerate(entries) if "at" in each):
        if at in first:
            must = f"S408 must differ from {place}.{first[at]}.at"
            yield Finding(f"{place}.{index}.at", at, must, reason, "write a time of its own, or remove one of the two")
        first.setdefault(at, index)


def days_listed_twice(place: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield each name in `entries`, which stand at `place`, that an earlier entry has."""
    first: dict[str, str] = {}
    for entry, each in enumerate(entries):
        for index, name in enumerate(each.get("days", ())):
            path = f"{place}.{entry}.days.{index}"
            if name in first:
                rule, reason = f"S408 must differ from {first[name]}", "a day can be in one entry only"
                fix = removal(path if len(each["days"]) > 1 else f"{place}.{entry}")
                yield Finding(path, name, rule, reason, fix)
            first.setdefault(name, path)

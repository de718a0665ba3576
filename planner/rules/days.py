"""Find duplicates in lists by time of day and in lists of named days."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.problems.finding import Finding
from planner.problems.fix import removal

__all__ = ["find_duplicate_days", "find_duplicate_times"]


def find_duplicate_times(place: str, entries: Sequence[Mapping[str, Any]], reason: str) -> Iterator[Finding]:
    """Yield a finding for each of the `entries` at `place` with the same `at` as an earlier one."""
    first: dict[str, int] = {}
    for index, at in ((index, each["at"]) for index, each in enumerate(entries) if "at" in each):
        if at in first:
            must = f"S408 must differ from {place}.{first[at]}.at"
            yield Finding(f"{place}.{index}.at", at, must, reason, "write a time of its own, or remove one of the two")
        first.setdefault(at, index)


def find_duplicate_days(place: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield a finding for each day in the `entries` at `place` that is named before."""
    first: dict[str, str] = {}
    for entry, each in enumerate(entries):
        for index, name in enumerate(each.get("days", ())):
            path = f"{place}.{entry}.days.{index}"
            if name in first:
                rule, reason = f"S408 must differ from {first[name]}", "a day can be in one entry only"
                fix = removal(path if len(each["days"]) > 1 else f"{place}.{entry}")
                yield Finding(path, name, rule, reason, fix)
            first.setdefault(name, path)

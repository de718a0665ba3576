"""The rule of lists whose entries hold from their time of day until the next one's: no two at the same time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.spec.rule import Broken

__all__ = ["at_different_times"]


def at_different_times(rule: str, place: str, entries: Sequence[Mapping[str, Any]], reason: str) -> Iterator[Broken]:
    """Break the rule of that id for each of the `entries` at `place` whose `at` an earlier one has."""
    first: dict[str, int] = {}
    for index, at in ((index, each["at"]) for index, each in enumerate(entries) if "at" in each):
        if at in first:
            must = f"{rule} must differ from {place}.{first[at]}.at"
            yield Broken(must, reason, "write a time of its own, or remove one of the two", f"{place}.{index}.at", at)
        first.setdefault(at, index)

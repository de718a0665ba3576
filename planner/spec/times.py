"""The rule of lists whose entries hold from their time of day until the next one's: no two at the same time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.day import DAY_MINUTES, hh_mm, minute_of
from planner.problems.fix import nearest
from planner.spec.rule import Broken

__all__ = ["at_different_times"]


def at_different_times(rule: str, place: str, entries: Sequence[Mapping[str, Any]], reason: str) -> Iterator[Broken]:
    """Break the rule of that id for each of the `entries` at `place` whose `at` an earlier one has."""
    first: dict[str, int] = {}
    times = [(index, each["at"]) for index, each in enumerate(entries) if "at" in each]
    taken = {time for _, time in times}
    for index, at in times:
        if at in first:
            free = _free_minute(at, taken)
            taken.add(free)
            must = f"{rule} must differ from {place}.{first[at]}.at"
            yield Broken(must, reason, nearest(free), f"{place}.{index}.at", at)
        first.setdefault(at, index)


def _free_minute(at: str, taken: set[str]) -> str:
    """Return the first minute after `at` at which no entry starts."""
    later = (hh_mm(minute_of(at) + step) for step in range(1, DAY_MINUTES))
    return next(time for time in later if time not in taken)

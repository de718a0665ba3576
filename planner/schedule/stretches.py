"""A day cut into stretches in which nothing changes: the same units on, the same prices and demand.

Units and prices are step functions of the time of day, each entry from its time until the next one's, the last
until the first's on the next day. So every sum over a day is a sum over its stretches, without any error of sampling.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import Generic, TypeVar

from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, minute_of
from planner.facts.terms import Phase
from planner.schedule.schedule import DaySchedule

__all__ = ["Stretch", "TimesOfDay", "demand_shares", "entry_starts", "nodes_on", "stretches_between"]

Value = TypeVar("Value")
NodesOn = Mapping[Phase, int]


@dataclass(frozen=True)
class TimesOfDay(Generic[Value]):
    """What holds at each time of day."""

    entries: tuple[tuple[int, Value], ...]  # minute from midnight -> what holds from then on; sorted, one at least

    @classmethod
    def always(cls, value: Value) -> "TimesOfDay[Value]":
        """Return the same value for the whole day."""
        return cls(((0, value),))

    @classmethod
    def written(cls, times: Iterable[tuple[str, Value]], otherwise: Value) -> "TimesOfDay[Value]":
        """Read `HH:MM` and what holds from then on; `otherwise` holds where there is none."""
        entries = tuple(sorted(((minute_of(at), value) for at, value in times), key=lambda entry: entry[0]))
        return cls(entries) if entries else cls.always(otherwise)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Return the minutes at which something else begins to hold."""
        return tuple(minute for minute, _ in self.entries)

    def at(self, minute: int) -> Value:
        """Return what holds at `minute`: before the first entry it is yesterday's last."""
        number = bisect_right(self.starts, minute)
        return self.entries[number - 1][1]


@dataclass(frozen=True)
class Stretch:
    """Minutes of a day in which nothing changes."""

    start: int  # minutes from midnight
    minutes: int

    @property
    def hours(self) -> float:
        """Return how long it lasts."""
        return self.minutes / HOUR_MINUTES


def stretches_between(starts: Iterable[int]) -> tuple[Stretch, ...]:
    """Cut the day at each of `starts`, and at midnight."""
    cuts = sorted({0, *starts})
    return tuple(Stretch(start, end - start) for start, end in zip(cuts, [*cuts[1:], DAY_MINUTES], strict=True))


def nodes_on(schedule: DaySchedule | None, per_unit: Mapping[Phase, Sequence[int]]) -> TimesOfDay[NodesOn]:
    """Return how many nodes each phase has on; `per_unit` has the nodes of each of its units, in their order."""
    if schedule is None:
        return TimesOfDay.always({phase: sum(nodes) for phase, nodes in per_unit.items()})
    steps = [
        (step.at, {phase: sum(nodes[: step.num_units[phase]]) for phase, nodes in per_unit.items()})
        for step in schedule.steps
    ]
    return TimesOfDay.written(steps, {})


def entry_starts(profile: Sequence[float] | None) -> range:
    """Return the minutes at which the entries of a profile begin; midnight without one."""
    return range(0, DAY_MINUTES, DAY_MINUTES // len(profile or [1.0]))


def demand_shares(profile: Sequence[float] | None, stretches: Sequence[Stretch]) -> tuple[float, ...]:
    """Return the share of the day's tokens in each of `stretches`, which begin at each of `entry_starts` at least.

    Demand is even within an entry of the profile, and over the day without one. Shares add up to 1, or to 0 on a day
    that asks for nothing.
    """
    entries = profile or [1.0]
    total, minutes = fsum(entries) or 1.0, DAY_MINUTES // len(entries)
    return tuple(entries[each.start // minutes] / total * each.minutes / minutes for each in stretches)

"""Cut a day into stretches in which nothing changes: neither units, nor prices, nor demand.

Units and prices are step functions of the time of day: an entry holds until the next entry, and the last one until the
first entry of the next day. So every sum over a day is an exact sum over its stretches.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, fsum
from typing import Generic, TypeVar

from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, MINUTE_S, minute_of, second_of
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.schedule.schedule import Timetable

Value = TypeVar("Value")
NodesOn = Mapping[Phase, int]


@dataclass(frozen=True)
class TimesOfDay(Generic[Value]):
    """A step function: the value at each minute of the day."""

    entries: tuple[tuple[int, Value], ...]  # minute from midnight -> value from then on; sorted, at least one

    @classmethod
    def always(cls, value: Value) -> "TimesOfDay[Value]":
        """Return the step function that has the same `value` all day."""
        return cls(((0, value),))

    @classmethod
    def from_pairs(cls, times: Iterable[tuple[str, Value]], otherwise: Value) -> "TimesOfDay[Value]":
        """Return the step function of pairs (`HH:MM`, value from then on); without pairs it is `otherwise` all day."""
        entries = tuple(sorted(((minute_of(at), value) for at, value in times), key=lambda entry: entry[0]))
        return cls(entries) if entries else cls.always(otherwise)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The minutes of the day at which the function's entries begin."""
        return tuple(minute for minute, _ in self.entries)

    def at(self, minute: int) -> Value:
        """Return the value at a minute of the day; before the first entry, the last entry holds."""
        number = bisect_right(self.starts, minute)
        return self.entries[number - 1][1]


@dataclass(frozen=True)
class Stretch:
    """A period of a day in which nothing changes: neither units, nor prices, nor demand."""

    start: int  # minutes from midnight
    minutes: int

    @property
    def hours(self) -> float:
        """The stretch's length in hours."""
        return self.minutes / HOUR_MINUTES


def stretches_between(starts: Iterable[int]) -> tuple[Stretch, ...]:
    """Return the stretches of a day that is cut at each minute of `starts`, and at midnight."""
    cuts = sorted({0, *starts})
    return tuple(Stretch(start, end - start) for start, end in zip(cuts, [*cuts[1:], DAY_MINUTES], strict=True))


def nodes_on(schedule: Timetable | None, per_unit: Mapping[Phase, Sequence[int]]) -> TimesOfDay[NodesOn]:
    """Return how many nodes of each phase are on, as a function of the time of day.

    `per_unit` is phase -> the numbers of nodes of its units, in the order in which the schedule turns units on.
    """
    if schedule is None:
        return TimesOfDay.always({phase: sum(nodes) for phase, nodes in per_unit.items()})
    steps = [
        (step.at, {phase: sum(nodes[: step.num_units[phase]]) for phase, nodes in per_unit.items()})
        for step in schedule.steps
    ]
    return TimesOfDay.from_pairs(steps, {})


def nodes_taken(schedule: Timetable | None, units: Sequence[Unit]) -> list[float]:
    """Return the mean number of nodes that `units` take in each minute of an ordinary day, `[minutes]`.

    A unit takes its nodes while it serves, warms up or drains, so all the time but when a transition frees them.
    """
    nodes = {unit.name: len(unit.nodes) for unit in units}
    if schedule is None:
        return [float(sum(nodes.values()))] * DAY_MINUTES
    ever = {unit for step in schedule.steps for unit in step.units}
    taken = [float(sum(number for unit, number in nodes.items() if unit in ever))] * DAY_MINUTES
    for freed in (each for transition in schedule.transitions for each in transition.freed if each.unit in nodes):
        begin = second_of(freed.begins) / MINUTE_S
        end = begin + freed.node_hours / freed.num_nodes * HOUR_MINUTES
        for minute in range(int(begin), ceil(end)):
            share = min(end, minute + 1) - max(begin, minute)
            taken[minute % DAY_MINUTES] -= freed.num_nodes * share
    return taken


def entry_starts(profile: Sequence[float] | None) -> range:
    """Return the minutes of the day at which the entries of a traffic profile begin; midnight without a profile."""
    return range(0, DAY_MINUTES, DAY_MINUTES // len(profile or [1.0]))


def demand_shares(profile: Sequence[float] | None, stretches: Sequence[Stretch]) -> tuple[float, ...]:
    """Return the share of the day's tokens that arrives in each stretch, `[stretches]`.

    Demand is constant within an entry of the profile, so a stretch must begin at each of `entry_starts`. Without a
    profile demand is constant all day. Shares sum to 1, or to 0 on a day without demand.
    """
    entries = profile or [1.0]
    total, minutes = fsum(entries) or 1.0, DAY_MINUTES // len(entries)
    return tuple(entries[each.start // minutes] / total * each.minutes / minutes for each in stretches)

"""The units that serve at each minute of a played day: those of the plan's schedule, less those that have failed.

A unit that stops takes no new requests and has at most `drain` to finish those it has. One that fails loses them. It
serves again once it has warmed up on a spare; if no spare is left, not on that day.

Nodes are `taken` from the beginning of a warm-up to the end of a drain. The same day is assumed before and after, so a
unit that stops at 23:58 drains in the first minutes of the day.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import numpy as np

from planner.compiler import Compiled
from planner.facts.day import DAY_MINUTES, MINUTE_S, minute_of
from planner.facts.terms import Phase
from planner.spec.schedule import ALL_DAY, ScheduleSpec

__all__ = ["Fleet", "Load", "Outage", "PlannedFleet", "UnitCounts", "planned_fleet", "switching_schedule"]

Units = frozenset[str]


@dataclass(frozen=True)
class Outage:
    """A unit's outage after a node failed, from minute `since` of the day until it serves again on a spare at `until`.

    `until` is None if the unit stays out for the rest of the day.
    """

    unit: str
    node: str
    since: int
    until: int | None
    spare: str | None

    def covers(self, minute: int) -> bool:
        """Return whether the unit is out at `minute`."""
        return self.since <= minute and (self.until is None or minute < self.until)


@dataclass(frozen=True)
class Load:
    """The load that an autoscaler sees: phase -> the share of its capacity in use."""

    used: Mapping[Phase, float]


@dataclass(frozen=True)
class UnitCounts:
    """The units of one phase at one minute: how many serve, stop and fail, and the number of their nodes."""

    serving: int
    stopped: int = 0  # units that stopped in this minute and may finish their requests
    lost: int = 0  # units that failed in this minute and lost their requests
    nodes_on: int = 0  # nodes of units that serve or should serve
    nodes_taken: int = 0  # `nodes_on` and the nodes of units that warm up or drain


class Fleet(Protocol):
    """The units of each phase that serve at each minute of a day: as planned, or scaled by load."""

    drain_s: float

    def units_at(self, minute: int, load: Load) -> Mapping[Phase, UnitCounts]:
        """Return phase -> its units at `minute`, given the `load` of the minute before.

        Called once for each minute, in order.
        """
        ...


@dataclass
class PlannedFleet:
    """A fleet that follows the plan's own schedule."""

    drain_s: float
    serving: Mapping[Phase, Sequence[Units]]  # at each minute
    nodes_on: Mapping[Phase, Sequence[int]]
    nodes_taken: Mapping[Phase, Sequence[int]]
    outages: Sequence[Outage] = ()
    _previous: dict[Phase, Units] = field(default_factory=dict, init=False)

    def units_at(self, minute: int, load: Load) -> Mapping[Phase, UnitCounts]:
        """Return phase -> its scheduled units at `minute`, less failed ones; `load` has no effect."""
        return {phase: self._change(phase, minute) for phase in self.serving}

    def _change(self, phase: Phase, minute: int) -> UnitCounts:
        on = self.serving[phase][minute]
        out = frozenset(each.unit for each in self.outages if each.covers(minute))
        before, serving = self._previous.get(phase, self.serving[phase][-1]), on - out
        self._previous[phase] = serving
        return UnitCounts(
            serving=len(serving),
            stopped=len(before - on - out),
            lost=len(before & out),
            nodes_on=self.nodes_on[phase][minute],
            nodes_taken=self.nodes_taken[phase][minute],
        )


def planned_fleet(plan: Compiled, outages: Sequence[Outage] = (), date: str | None = None) -> PlannedFleet:
    """Return the fleet that follows the schedule of `plan` on `date` (or a weekday), less units that are out.

    Without a controller nothing carries the schedule out, and all units stay on.
    """
    schedule = switching_schedule(plan)
    units = {phase: [each for each in plan.units if each.phase == phase] for phase in plan.spec.phases}
    on = {phase: _serving_units(plan, phase, date) for phase in units}
    nodes = {each.name: len(each.nodes) for each in plan.units}
    margins = ceil(schedule.warm_up / MINUTE_S), ceil(schedule.drain / MINUTE_S)
    return PlannedFleet(
        drain_s=schedule.drain,
        serving=on,
        nodes_on={phase: [sum(nodes[unit] for unit in each) for each in minutes] for phase, minutes in on.items()},
        nodes_taken={phase: _count_taken_nodes(on[phase], nodes, *margins) for phase in on},
        outages=outages,
    )


def switching_schedule(plan: Compiled) -> ScheduleSpec:
    """Return the schedule in the spec of `plan`.

    If all units are always on, return a schedule with the default warm-up and drain times.
    """
    return plan.spec.schedule or ALL_DAY


def _serving_units(plan: Compiled, phase: Phase, date: str | None) -> list[Units]:
    """Return the units of `phase` that should serve at each minute, `[minutes]`."""
    named = {each.name for each in plan.units if each.phase == phase}
    if plan.running_schedule is None:
        return [frozenset(named)] * DAY_MINUTES
    found: list[Units] = [frozenset()] * DAY_MINUTES
    for step in plan.running_schedule.steps_on(date):
        first = minute_of(step.at)
        serving = frozenset(named.intersection(step.units))
        for minute in range(first, first + step.minutes):
            found[minute % DAY_MINUTES] = serving
    return found


def _count_taken_nodes(on: Sequence[Units], nodes: Mapping[str, int], warm_up: int, drain: int) -> list[int]:
    """Return the number of taken nodes at each minute, `[minutes]`, from the serving units `on` at each minute.

    A unit takes its `nodes` while it serves, and in the `warm_up` minutes before and `drain` minutes after.
    """
    total = np.zeros(DAY_MINUTES, dtype=np.int64)
    for unit in sorted(frozenset[str]().union(*on)):
        serving = np.array([unit in each for each in on])
        taken = serving.copy()
        for ahead in range(1, warm_up + 1):
            taken |= np.roll(serving, -ahead)
        for ago in range(1, drain + 1):
            taken |= np.roll(serving, ago)
        total += nodes[unit] * taken
    return [int(each) for each in total]

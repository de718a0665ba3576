"""Plan the transitions between the states of a day: which units start and stop, and when they take and free nodes.

The durations are fields of the spec's schedule. A unit that starts takes its nodes `warm_up` before it serves; a unit
that stops keeps its nodes for `drain`. Other work on the nodes is warned `notice` before a unit takes them. If a unit
starts again within `drain` + `warm_up` of a stop, it keeps its nodes and the stop frees nothing. All units of a
transition start at once, in the order of their numbers, because they share the storage; they stop in the opposite
order. Units share no nodes, so no start waits for a stop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from planner.facts.day import DAY_MINUTES, MINUTE_S, hh_mm_ss
from planner.schedule.starts import MAPS_S, READY_S, StartTimes, Window, loading_times, starts_of
from planner.spec.schedule import ScheduleSpec

Number = int | float  # an int stays an int: 0 and 0.0 differ in JSON, and so in a digest


@dataclass(frozen=True)
class State:
    """The units that are on from a minute of the day until the next state begins."""

    minute: int  # from midnight
    units: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """A part of a start, such as reading weights. `begins` is a time of day, `HH:MM:SS`."""

    name: str
    begins: str
    seconds: Number


@dataclass(frozen=True)
class Freed:
    """The nodes that a stopping unit frees: how many, from when, and until the unit takes them again."""

    unit: str
    begins: str
    ends: str
    num_nodes: int
    node_hours: Number


@dataclass(frozen=True)
class Transition:
    """A change of the day's state, in which units start or stop. Times are `HH:MM:SS` in the schedule's time zone."""

    at: str
    starts: tuple[str, ...]
    notice_from: str | None  # None if no unit starts
    warm_up_from: str | None
    stages: tuple[Stage, ...]  # of the start; empty if no unit starts, or if the bytes that units read are unknown
    stops: tuple[str, ...]  # units, in the order in which they stop
    drained_by: str | None  # time at which stopping units have drained; None if no unit stops
    freed: tuple[Freed, ...]
    freed_node_hours: Number  # of all stopping units


def plan_transitions(
    states: Sequence[State],
    nodes: Mapping[str, int],
    schedule: ScheduleSpec,
    stages: Mapping[int, tuple[Stage, ...]] | None = None,
) -> tuple[Transition, ...]:
    """Return the transition into each of `states` that starts or stops units, in order of time.

    `nodes` is unit -> its number of nodes; `stages` is the minute at which starting units serve -> the start's
    stages.
    """
    ordered = sorted(states, key=lambda state: state.minute)
    found = []
    for index, state in enumerate(ordered):
        before = ordered[index - 1].units
        starts = tuple(unit for unit in state.units if unit not in before)
        stops = tuple(unit for unit in reversed(before) if unit not in state.units)
        if starts or stops:
            freed = tuple(_count_freed(ordered, index, unit, nodes[unit], schedule) for unit in stops)
            begin = state.minute * MINUTE_S - schedule.warm_up
            found.append(
                Transition(
                    at=hh_mm_ss(state.minute * MINUTE_S),
                    starts=starts,
                    notice_from=hh_mm_ss(begin - schedule.start.notice) if starts else None,
                    warm_up_from=hh_mm_ss(begin) if starts else None,
                    stages=(stages or {}).get(state.minute, ()) if starts else (),
                    stops=stops,
                    drained_by=hh_mm_ss(state.minute * MINUTE_S + schedule.drain) if stops else None,
                    freed=tuple(each for each in freed if each.node_hours > 0),
                    freed_node_hours=sum(each.node_hours for each in freed),
                )
            )
    return tuple(found)


def plan_stages(windows: Sequence[Window], times: StartTimes, warm_up: float) -> dict[int, tuple[Stage, ...]]:
    """Return the minute at which starting units serve -> the stages of their start.

    The start begins `warm_up` seconds before that minute. A start that never ends is left out.
    """
    starts = starts_of(windows, times)
    return {
        each.minute: _stages(each.minute * MINUTE_S - warm_up, loading, times)
        for each, loading in zip(starts, loading_times(starts), strict=True)
        if loading < inf  # else the day is too short to read the bytes: only an edited plan can be like that
    }


def nodes_taken(nodes: Mapping[str, int], states: Sequence[State], transitions: Sequence[Transition]) -> float:
    """Return the mean number of nodes over the day that units use while they serve, warm up or drain.

    `nodes` is unit -> its number of nodes.
    """
    ever = {unit for state in states for unit in state.units}
    return sum(nodes[unit] for unit in ever) - sum(each.freed_node_hours for each in transitions) / 24


def _stages(begin: float, loading: float, times: StartTimes) -> tuple[Stage, ...]:
    spec, found = times.spec, []
    lengths = {"pods": spec.pods, "weights": loading, "join": spec.join, "maps": MAPS_S, "graphs": spec.graphs}
    for name, seconds in {**lengths, "ready": READY_S}.items():
        found.append(Stage(name, hh_mm_ss(begin), round(seconds, 1)))
        begin += seconds
    return tuple(found)


def _count_freed(ordered: Sequence[State], index: int, unit: str, nodes: int, schedule: ScheduleSpec) -> Freed:
    """Return the nodes that `unit` frees when it stops at state `index`, and for how long."""
    begins = ordered[index].minute * MINUTE_S + schedule.drain
    seconds = max(_off_minutes(ordered, index, unit) * MINUTE_S - schedule.drain - schedule.warm_up, 0.0)
    return Freed(unit, hh_mm_ss(begins), hh_mm_ss(begins + seconds), nodes, nodes * seconds / 3600)


def _off_minutes(ordered: Sequence[State], index: int, unit: str) -> int:
    """Return the minutes for which `unit` is off after state `index` stops it, a whole day if no state starts it."""
    for ahead in range(1, len(ordered)):
        state = ordered[(index + ahead) % len(ordered)]
        if unit in state.units:
            return (state.minute - ordered[index].minute) % DAY_MINUTES
    return DAY_MINUTES

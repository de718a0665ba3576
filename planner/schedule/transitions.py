"""The ways between the states of a day: which units start and stop, and when their nodes are taken and free.

A unit that starts has its nodes for `warm_up` before it serves; one that stops keeps them for `drain`. A stop whose
next start is sooner than both together frees nothing: its nodes stay with the unit all the while.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.spec.hours import DAY_MINUTES

__all__ = ["State", "Transition", "nodes_taken", "transitions_of"]

MINUTE_S = 60


@dataclass(frozen=True)
class State:
    """The units that serve from `minute` on, counted from midnight."""

    minute: int
    units: tuple[str, ...]


@dataclass(frozen=True)
class Transition:
    """One change of the units that serve. Times are `HH:MM:SS`, of the same clock as the schedule's."""

    at: str
    starts: tuple[str, ...]
    warm_up_from: str | None  # none where no unit starts
    stops: tuple[str, ...]
    drained_by: str | None
    freed_node_hours: float  # of the units that stop, until their nodes are taken again


def transitions_of(
    states: Sequence[State], nodes: Mapping[str, int], warm_up: float, drain: float
) -> tuple[Transition, ...]:
    """Return the way into each of `states`, in order of the day; `nodes` are those of each unit, times in seconds."""
    ordered = sorted(states, key=lambda state: state.minute)
    found = []
    for index, state in enumerate(ordered):
        before = ordered[index - 1].units
        starts = tuple(unit for unit in state.units if unit not in before)
        stops = tuple(unit for unit in before if unit not in state.units)
        if starts or stops:
            free = {unit: _off_minutes(ordered, index, unit) * MINUTE_S - drain - warm_up for unit in stops}
            found.append(
                Transition(
                    at=_clock(state.minute * MINUTE_S),
                    starts=starts,
                    warm_up_from=_clock(state.minute * MINUTE_S - warm_up) if starts else None,
                    stops=stops,
                    drained_by=_clock(state.minute * MINUTE_S + drain) if stops else None,
                    freed_node_hours=sum(nodes[unit] * max(seconds, 0.0) for unit, seconds in free.items()) / 3600,
                )
            )
    return tuple(found)


def nodes_taken(nodes: Mapping[str, int], states: Sequence[State], transitions: Sequence[Transition]) -> float:
    """Return how many nodes units that are on at some time have on average, while they warm up and drain too."""
    ever = {unit for state in states for unit in state.units}
    return sum(nodes[unit] for unit in ever) - sum(each.freed_node_hours for each in transitions) / 24


def _off_minutes(ordered: Sequence[State], index: int, unit: str) -> int:
    """Return how long `unit`, which stops at a state, is off."""
    for ahead in range(1, len(ordered)):
        state = ordered[(index + ahead) % len(ordered)]
        if unit in state.units:
            return (state.minute - ordered[index].minute) % DAY_MINUTES
    return DAY_MINUTES


def _clock(seconds: float) -> str:
    whole = round(seconds) % (DAY_MINUTES * MINUTE_S)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"

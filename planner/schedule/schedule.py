"""The day of a plan: which units are on when, and which nodes that takes.

A window lasts from its time until the next one's, the last until the first's on the next day, so that windows may
cross midnight. Units of a phase are switched by number: with three on, those are the first three. So the units, and
the nodes, of a smaller state are always among those of a larger one, and a step in the schedule moves nothing.

Worked example, the day of DeepSeek's own service: prefill units of 4 nodes and decode units of 18, from
29 x 4 + 9 x 18 = 278 nodes at noon to 8 x 4 + 2 x 18 = 68 at night; 226.75 on average.

Windows that follow traffic are derived before (`derived.py`); the ways between states are in `transitions.py`.

Source of the example: open-infra-index, day 6 (the step chart of nodes).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.schedule.transitions import State, Transition, nodes_taken, transitions_of
from planner.spec.hours import DAY_MINUTES, window_minutes, window_starts
from planner.spec.schedule import WindowSpec
from planner.spec.schema import Spec

__all__ = ["NOT_EXECUTED", "DaySchedule", "Step", "plan_schedule", "switches_units"]

NOT_EXECUTED = "Nothing switches units yet: all of them stay on, whatever the schedule says."


@dataclass(frozen=True)
class Step:
    """A state of the deployment, from `at` on."""

    at: str
    minutes: int
    num_units: dict[Phase, int]
    units: tuple[str, ...]
    num_nodes: int


@dataclass(frozen=True)
class DaySchedule:
    """All states of a day, in the order of the spec."""

    timezone: str
    steps: tuple[Step, ...]
    transitions: tuple[Transition, ...]
    mean_nodes_taken: float  # with those of units that warm up or drain

    @property
    def switches(self) -> bool:
        """True if some unit is off at some time."""
        return switches_units(step.units for step in self.steps)

    @property
    def peak_nodes(self) -> int:
        """The number of nodes that the cluster must hold."""
        return max(step.num_nodes for step in self.steps)

    @property
    def mean_nodes(self) -> float:
        """The mean number of nodes over the day."""
        return sum(step.num_nodes * step.minutes for step in self.steps) / DAY_MINUTES

    @property
    def released_node_hours(self) -> float:
        """The node-hours of a day, out of the peak's nodes, that are free for other work."""
        return sum((self.peak_nodes - step.num_nodes) * step.minutes for step in self.steps) / 60


def switches_units(units_of_steps: Iterable[Sequence[str]]) -> bool:
    """Return whether some unit is off in one of a day's states; each state has the names of the units that are on."""
    return len(set(map(tuple, units_of_steps))) > 1


def plan_schedule(spec: Spec, units: Sequence[Unit]) -> DaySchedule | None:
    """Return the day of `spec` over its placed units; None where all are always on."""
    if spec.schedule is None:
        return None
    lengths = window_minutes(spec.schedule)
    steps = tuple(
        _step(spec, window, length, units) for window, length in zip(spec.schedule.windows, lengths, strict=True)
    )
    states = [State(minute, step.units) for minute, step in zip(window_starts(spec.schedule), steps, strict=True)]
    nodes = {unit.name: len(unit.nodes) for unit in units}
    transitions = transitions_of(states, nodes, spec.schedule.warm_up, spec.schedule.drain)
    return DaySchedule(spec.schedule.timezone, steps, transitions, nodes_taken(nodes, states, transitions))


def _step(spec: Spec, window: WindowSpec, minutes: int, units: Sequence[Unit]) -> Step:
    num_units = {phase: window.num_units(phase) for phase in spec.phases}
    active = [unit for unit in units if unit.index < num_units[unit.phase]]
    num_nodes = sum(len(unit.nodes) for unit in active)
    return Step(window.at, minutes, num_units, tuple(unit.name for unit in active), num_nodes)

"""The day of a plan: which units are on when, and which nodes that takes.

A window lasts from its time until the next one's, the last until the first's on the next day, so that windows may
cross midnight. Units of a phase are switched by number: with three on, those are the first three. So the units, and
the nodes, of a smaller state are always among those of a larger one, and a step in the schedule moves nothing.

Weekdays and dates may have windows of their own. Each day is by itself: it begins in the state in which it ends.

Worked example, the day of DeepSeek's own service: prefill units of 4 nodes and decode units of 18, from
29 x 4 + 9 x 18 = 278 nodes at noon to 8 x 4 + 2 x 18 = 68 at night; 226.75 on average.

Windows that follow traffic are derived before (`derived.py`); the ways between states are in `transitions.py`.

Source of the example: open-infra-index, day 6 (the step chart of nodes).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.facts.calendar import entry_of
from planner.facts.day import DAY_MINUTES
from planner.facts.terms import Phase
from planner.layout.nodes import nodes_of
from planner.layout.unit import Unit
from planner.schedule.starts import StartTimes, Window
from planner.schedule.transitions import State, Transition, nodes_taken, stages_of, transitions_of
from planner.spec.hours import window_minutes, window_starts
from planner.spec.schedule import OtherWindowsSpec, ScheduleSpec, WindowSpec
from planner.spec.schema import Spec

__all__ = [
    *("ALL_STAY_ON", "NOT_EXECUTED", "DaySchedule", "Days", "OtherDays", "Step"),
    *("plan_schedule", "steps_of", "with_windows_of"),
]

NOT_EXECUTED = "Without kubernetes.controller nothing switches units in a cluster: all of them stay on."
ALL_STAY_ON = "All units stay on, whatever the schedule says: tidemill up --day plays its day."


@dataclass(frozen=True)
class Step:
    """A state of the deployment, from `at` on."""

    at: str
    minutes: int
    num_units: dict[Phase, int]
    units: tuple[str, ...]
    num_nodes: int
    free_racks: int | None  # whose nodes are all free of units; none where no rack is named

    def units_of(self, phase: Phase) -> tuple[str, ...]:
        """Return the units of `phase` that are on: `units` has them phase by phase."""
        phases = list(self.num_units)
        before = sum(self.num_units[each] for each in phases[: phases.index(phase)])
        return self.units[before : before + self.num_units[phase]]


@dataclass(frozen=True)
class OtherDays:
    """All states of a day that is not like most, in the order of the spec; transitions are those after one like it."""

    days: tuple[str, ...]  # weekdays, and dates
    steps: tuple[Step, ...]
    transitions: tuple[Transition, ...] = ()
    mean_nodes_taken: float = 0.0

    @property
    def mean_nodes(self) -> float:
        """The mean number of nodes over such a day."""
        return _mean_nodes(self.steps)


@dataclass(frozen=True)
class Days:
    """The states of a day like most, in the order of the spec, and of the days that are not like it."""

    timezone: str  # the IANA's name of the place whose clocks it goes by
    steps: tuple[Step, ...]
    other_days: tuple[OtherDays, ...] = field(default=(), kw_only=True)

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The states of all days."""
        return (*self.steps, *(step for other in self.other_days for step in other.steps))

    @property
    def switches(self) -> bool:
        """True if some unit is off at some time."""
        return len({step.units for step in self.all_steps}) > 1

    def steps_on(self, day: str | None) -> tuple[Step, ...]:
        """Return the states of a date or a weekday; without one, those of a day like most."""
        entry = None if day is None else entry_of(day, [other.days for other in self.other_days])
        return self.steps if entry is None else self.other_days[entry].steps


@dataclass(frozen=True)
class DaySchedule(Days):
    """The days as they are planned: also the ways between their states, and the nodes that all of it takes."""

    transitions: tuple[Transition, ...]
    mean_nodes_taken: float  # with those of units that warm up or drain
    gpus_per_node: int

    @property
    def peak_nodes(self) -> int:
        """The number of nodes that the cluster must hold."""
        return max(step.num_nodes for step in self.all_steps)

    @property
    def mean_nodes(self) -> float:
        """The mean number of nodes over the day."""
        return _mean_nodes(self.steps)

    @property
    def released_node_hours(self) -> float:
        """The node-hours of a day, out of the peak's nodes, that are free for other work."""
        return sum((self.peak_nodes - step.num_nodes) * step.minutes for step in self.steps) / 60

    @property
    def released_gpu_hours(self) -> float:
        """The GPU-hours of a day that are free for other work."""
        return self.released_node_hours * self.gpus_per_node


def _mean_nodes(steps: Sequence[Step]) -> float:
    return sum(step.num_nodes * step.minutes for step in steps) / DAY_MINUTES


def plan_schedule(spec: Spec, units: Sequence[Unit], times: StartTimes | None = None) -> DaySchedule | None:
    """Return the day of `spec` over its placed units; None where all are always on.

    `times` are what a start takes, where that is known.
    """
    if spec.schedule is None:
        return None
    steps, transitions, mean_nodes_taken = _planned(spec, spec.schedule, units, times)
    return DaySchedule(
        timezone=spec.schedule.timezone,
        steps=steps,
        transitions=transitions,
        mean_nodes_taken=mean_nodes_taken,
        gpus_per_node=spec.cluster.gpus_per_node,
        other_days=tuple(
            OtherDays(tuple(other.days), *_planned(spec, with_windows_of(spec.schedule, other), units, times))
            for other in spec.schedule.other_days
        ),
    )


def with_windows_of(schedule: ScheduleSpec, other: OtherWindowsSpec) -> ScheduleSpec:
    """Return `schedule` as if all days were as `other`."""
    return schedule.model_copy(update={"windows": other.windows, "other_days": []})


def _planned(
    spec: Spec, schedule: ScheduleSpec, units: Sequence[Unit], times: StartTimes | None
) -> tuple[tuple[Step, ...], tuple[Transition, ...], float]:
    """Return the states of a day, the ways between them, and the nodes that are taken on average."""
    starts, steps = window_starts(schedule), steps_of(spec, schedule, units)
    states = [State(minute, step.units) for minute, step in zip(starts, steps, strict=True)]
    nodes = {unit.name: len(unit.nodes) for unit in units}
    windows = sorted(
        (Window(minute, step.num_units) for minute, step in zip(starts, steps, strict=True)),
        key=lambda each: each.minute,
    )
    stages = stages_of(windows, times, schedule.warm_up) if times else {}
    transitions = transitions_of(states, nodes, schedule, stages)
    return steps, transitions, nodes_taken(nodes, states, transitions)


def steps_of(spec: Spec, schedule: ScheduleSpec, units: Sequence[Unit]) -> tuple[Step, ...]:
    """Return the states of the day that `schedule`, which is the spec's, makes of the placed units."""
    racks = _racks(spec)
    return tuple(
        _step(spec, window, length, units, racks)
        for window, length in zip(schedule.windows, window_minutes(schedule), strict=True)
    )


def _racks(spec: Spec) -> dict[str, set[str]]:
    """Return the nodes of each named rack whose nodes can all be used; one with a spare is never free."""
    racks: dict[str, set[str]] = {}
    kept = set()
    for node in nodes_of(spec.cluster, spec.gpu_names, spec.kubernetes.tolerations):
        racks.setdefault(node.rack, set()).add(node.name)
        if node.unusable is not None:
            kept.add(node.rack)
    return {rack: nodes for rack, nodes in racks.items() if rack and rack not in kept}


def _step(spec: Spec, window: WindowSpec, minutes: int, units: Sequence[Unit], racks: Mapping[str, set[str]]) -> Step:
    num_units = {phase: window.num_units(phase) for phase in spec.phases}
    active = [unit for unit in units if unit.index < num_units[unit.phase]]
    taken = {node for unit in active for node in unit.nodes}
    free_racks = sum(taken.isdisjoint(nodes) for nodes in racks.values()) if racks else None
    return Step(window.at, minutes, num_units, tuple(unit.name for unit in active), len(taken), free_racks)

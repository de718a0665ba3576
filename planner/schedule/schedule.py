"""Plan the day of a deployment: which units are on when, and how many nodes they use.

A window lasts until the next window begins. The last one lasts until the first begins on the next day, so windows may
cross midnight. Units of a phase are switched by number: with three units on, these are the first three. So the units
and nodes of a smaller state are always among those of a larger state, and the schedule never moves a unit.

Weekdays and dates may have windows of their own. Each kind of day is planned as if it repeated every day.

Worked example, the day of DeepSeek's own service: prefill units of 4 nodes and decode units of 18, from
29 x 4 + 9 x 18 = 278 nodes at noon to 8 x 4 + 2 x 18 = 68 at night; 226.75 on average.

Windows that follow traffic have been derived before (`derived.py`). `transitions.py` plans the changes between states.

Source of the example: open-infra-index, day 6 (the step chart of nodes).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.facts.calendar import entry_of
from planner.facts.day import DAY_MINUTES
from planner.facts.terms import Phase
from planner.layout.nodes import nodes_of
from planner.layout.unit import Unit
from planner.schedule.starts import StartTimes, Window
from planner.schedule.transitions import State, Transition, nodes_taken, plan_stages, plan_transitions
from planner.spec.schedule import ALL_DAY, OtherWindowsSpec, ScheduleSpec, WindowSpec, window_minutes, window_starts
from planner.spec.schema import Spec

NOT_EXECUTED = "Without kubernetes.controller nothing switches units in a cluster: all of them stay on."
ALL_STAY_ON = "All units stay on, whatever the schedule says: tidemill up --day plays its day."


@dataclass(frozen=True)
class Step:
    """A step of the schedule: the units that are on from `at` until the next step, and the number of their nodes."""

    at: str  # HH:MM
    minutes: int  # that the step lasts
    num_units: dict[Phase, int]
    units: tuple[str, ...]
    num_nodes: int
    free_racks: int | None  # racks without a unit; None if no rack is named

    def units_of(self, phase: Phase) -> tuple[str, ...]:
        """Return the names of the units of `phase` that are on."""
        phases = list(self.num_units)
        before = sum(self.num_units[each] for each in phases[: phases.index(phase)])
        return self.units[before : before + self.num_units[phase]]


@dataclass(frozen=True)
class OtherDays:
    """A special kind of day: its states, and the transitions between them as if such days followed each other."""

    days: tuple[str, ...]  # weekdays, and dates
    steps: tuple[Step, ...]
    transitions: tuple[Transition, ...] = ()
    mean_nodes_taken: float = 0.0

    @property
    def mean_nodes(self) -> float:
        """The mean number of serving nodes over a day of this kind."""
        return _mean_nodes(self.steps)


@dataclass(frozen=True)
class Timetable:
    """The states of ordinary days, in the order of the windows, and of special days. The controller follows it.

    A timetable that is read from a cluster has no transitions, and figures that follow from them are unknown there.
    """

    timezone: str  # IANA name
    steps: tuple[Step, ...]
    warm_up_s: float  # for which a unit has its nodes before it serves
    drain_s: float  # for which a unit keeps them afterwards
    notice_s: float = 0.0  # how long before a unit takes its nodes other work on them is warned
    other_days: tuple[OtherDays, ...] = field(default=(), kw_only=True)
    transitions: tuple[Transition, ...] = field(default=(), kw_only=True)
    mean_nodes_taken: float = field(default=0.0, kw_only=True)  # nodes of units that warm up or drain included
    gpus_per_node: int = field(default=0, kw_only=True)

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The steps of ordinary days, followed by the steps of special days."""
        return (*self.steps, *(step for other in self.other_days for step in other.steps))

    @property
    def switches(self) -> bool:
        """Whether the schedule ever switches units, so that some unit is off at some time."""
        return len({step.units for step in self.all_steps}) > 1

    def steps_on(self, day: str | None) -> tuple[Step, ...]:
        """Return the states of `day`: a date, a weekday, or None for an ordinary day."""
        entry = None if day is None else entry_of(day, [other.days for other in self.other_days])
        return self.steps if entry is None else self.other_days[entry].steps

    def for_day(self, day: str) -> "Timetable":
        """Return the timetable of a date or a weekday as if every day were of its kind."""
        entry = entry_of(day, [other.days for other in self.other_days])
        kind = self if entry is None else self.other_days[entry]
        return replace(
            self,
            steps=kind.steps,
            transitions=kind.transitions,
            mean_nodes_taken=kind.mean_nodes_taken,
            other_days=(),
        )

    @property
    def peak_nodes(self) -> int:
        """The largest number of nodes in use at a time."""
        return max(step.num_nodes for step in self.all_steps)

    @property
    def mean_nodes(self) -> float:
        """The mean number of serving nodes over the day."""
        return _mean_nodes(self.steps)

    @property
    def released_node_hours(self) -> float:
        """The node-hours of a day in which nodes that the peak uses serve no unit, so that other work can use them."""
        peak = self.peak_nodes
        return sum((peak - step.num_nodes) * step.minutes for step in self.steps) / 60

    @property
    def released_gpu_hours(self) -> float:
        """The GPU-hours of a day in which GPUs that the peak uses serve no unit, so that other work can use them."""
        return self.released_node_hours * self.gpus_per_node


def _mean_nodes(steps: Sequence[Step]) -> float:
    return sum(step.num_nodes * step.minutes for step in steps) / DAY_MINUTES


def plan_schedule(spec: Spec, units: Sequence[Unit], times: StartTimes | None = None) -> Timetable | None:
    """Return the schedule of the placed `units`; None if there is neither a schedule nor a controller.

    `times` says how long units take to start, if that is known.
    """
    schedule = spec.schedule or (_all_day(spec) if spec.kubernetes.controller else None)
    if schedule is None:
        return None
    steps, transitions, mean_nodes_taken = _plan_day(spec, schedule, units, times)
    return Timetable(
        timezone=schedule.timezone,
        steps=steps,
        warm_up_s=schedule.warm_up,
        drain_s=schedule.drain,
        notice_s=schedule.start.notice,
        transitions=transitions,
        mean_nodes_taken=mean_nodes_taken,
        gpus_per_node=spec.cluster.gpus_per_node,
        other_days=tuple(
            OtherDays(tuple(other.days), *_plan_day(spec, _replace_windows(schedule, other), units, times))
            for other in schedule.other_days
        ),
    )


def _all_day(spec: Spec) -> ScheduleSpec:
    """Return the schedule of a controller that only gives turns: all units are on all day."""
    counts = {f"{phase}_units": spec.num_units(phase) for phase in spec.phases}
    return ALL_DAY.model_copy(update={"windows": [WindowSpec(at="00:00", **counts)]})


def _replace_windows(schedule: ScheduleSpec, other: OtherWindowsSpec) -> ScheduleSpec:
    """Return `schedule` with the windows of `other` for every day, and without special days."""
    return schedule.model_copy(update={"windows": other.windows, "other_days": []})


def _plan_day(
    spec: Spec, schedule: ScheduleSpec, units: Sequence[Unit], times: StartTimes | None
) -> tuple[tuple[Step, ...], tuple[Transition, ...], float]:
    """Return (states, transitions, mean number of nodes in use) of a day with the windows of `schedule`."""
    starts, steps = window_starts(schedule), _plan_steps(spec, schedule, units)
    states = [State(minute, step.units) for minute, step in zip(starts, steps, strict=True)]
    nodes = {unit.name: len(unit.nodes) for unit in units}
    windows = sorted(
        (Window(minute, step.num_units) for minute, step in zip(starts, steps, strict=True)),
        key=lambda each: each.minute,
    )
    stages = plan_stages(windows, times, schedule.warm_up) if times else {}
    transitions = plan_transitions(states, nodes, schedule, stages)
    return steps, transitions, nodes_taken(nodes, states, transitions)


def _plan_steps(spec: Spec, schedule: ScheduleSpec, units: Sequence[Unit]) -> tuple[Step, ...]:
    """Return the steps of a day, one for each window of `schedule`."""
    racks = _freeable_racks(spec)
    return tuple(
        _step(spec, window, length, units, racks)
        for window, length in zip(schedule.windows, window_minutes(schedule), strict=True)
    )


def _freeable_racks(spec: Spec) -> dict[str, set[str]]:
    """Return rack -> names of its nodes, for racks that can become free: named, without spares and unusable nodes."""
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

"""What a start of units takes, and how long before a window it must begin.

    start = pods, then weights, then join, maps, graphs, ready

Each stage but one is a time of the spec. Weights are read by all nodes of all units that start, at once: a node reads
no faster than its own link, and all together no faster than the storage. A start that begins while an earlier one still
reads waits for it, so storage is busy without a pause and the last byte comes as early as in any other order.

    loaded(i) = max(begin(i), loaded(i - 1)) + bytes(i) / storage, and >= begin(i) + bytes of a node / its link

All starts begin the same time before their windows, so a longer warm-up moves all of them alike. That makes the least
warm-up a formula: the stages' times, and the longest time to load of any start of the day.

A node reads each part that all its GPUs share once, and the slots of each GPU. It is not asked whether two GPUs of a
node hold the same expert, so this is at most a little more than is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.quantities import BYTES_PER_GBIT
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import MemoryPlan, node_bytes
from planner.spec.resolved import ResolvedSpec
from planner.spec.start import StartSpec

__all__ = [
    "MAPS_S",
    "READY_S",
    "Start",
    "StartTimes",
    "UnitRead",
    "Window",
    "least_warm_up",
    "loading_s",
    "start_times",
    "starts_of",
]

MAPS_S = 5.0  # assumed: an expert map is read and checked with the launch file
READY_S = 10.0  # the period of a readiness probe is 10 s unless given (kubernetes.io, configure probes)


@dataclass(frozen=True)
class UnitRead:
    """What a unit of a phase reads when it starts."""

    nodes: int
    node_bytes: float


@dataclass(frozen=True)
class StartTimes:
    """What a start takes in this deployment."""

    spec: StartSpec
    node_bytes_per_s: float
    units: Mapping[Phase, UnitRead]

    @property
    def fixed_s(self) -> float:
        """Return the time of all stages but the weights."""
        return self.spec.pods + self.after_weights_s

    @property
    def after_weights_s(self) -> float:
        """Return the time of the stages that follow the weights."""
        return self.spec.join + MAPS_S + self.spec.graphs + READY_S


@dataclass(frozen=True)
class Window:
    """The units of each phase that are on from a minute, counted from the first day's midnight."""

    minute: int
    units: Mapping[Phase, int]


@dataclass(frozen=True)
class Start:
    """The units that start for one window, and what they read together."""

    minute: int
    units: Mapping[Phase, int]
    num_bytes: float
    bytes_per_s: float  # of the storage
    node_s: float  # that the slowest node reads, alone


def start_times(spec: ResolvedSpec, layouts: Sequence[PhaseLayout], memory: Sequence[MemoryPlan]) -> StartTimes | None:
    """Return what a start takes; None without a schedule, or where memory is not known, as on a CPU."""
    if spec.written.schedule is None or len(memory) < len(layouts):
        return None
    units = {
        layout.phase: UnitRead(
            nodes=layout.nodes_per_unit,
            node_bytes=node_bytes(
                of_phase.weight_bytes,
                of_phase.parts["routed"],
                layout.ep_size,
                layout.attention_tp,
                spec.cluster.gpus_per_node,
            ),
        )
        for layout, of_phase in zip(layouts, memory, strict=True)
    }
    return StartTimes(spec.written.schedule.start, spec.written.kubernetes.load_rate * BYTES_PER_GBIT, units)


def starts_of(windows: Sequence[Window], times: StartTimes) -> tuple[Start, ...]:
    """Return the starts of one or more days in order; `windows` are sorted, and the last one comes before the first."""
    starts = []
    for index, window in enumerate(windows):
        before = windows[index - 1].units
        more = {phase: number - before[phase] for phase, number in window.units.items() if number > before[phase]}
        if more:
            starts.append(_start(window.minute, more, times))
    return tuple(starts)


def loading_s(starts: Sequence[Start], num_days: int = 1) -> tuple[float, ...]:
    """Return for each start the time until the last of its weights is there; infinite where the days are too short.

    The starts are those of so many days, which come again and again.
    """
    if sum(each.num_bytes / each.bytes_per_s for each in starts) > num_days * DAY_S:
        return (inf,) * len(starts)
    loaded, found = -inf, [0.0] * len(starts)
    for turn in (0, 1):  # the first is what was before, whose last start may still read
        for index, each in enumerate(starts):
            begin = each.minute * MINUTE_S + turn * num_days * DAY_S
            loaded = max(begin, loaded) + each.num_bytes / each.bytes_per_s
            found[index] = max(loaded - begin, each.node_s)
    return tuple(found)


def least_warm_up(starts: Sequence[Start], times: StartTimes, num_days: int = 1) -> float:
    """Return the least whole seconds of warm-up in which every start of so many days is ready at its window."""
    longest = max(loading_s(starts, num_days), default=0.0)
    return ceil(times.fixed_s + longest) if longest < inf else inf


def _start(minute: int, more: Mapping[Phase, int], times: StartTimes) -> Start:
    reads = {phase: times.units[phase] for phase in more}
    return Start(
        minute=minute,
        units=more,
        num_bytes=sum(number * reads[phase].nodes * reads[phase].node_bytes for phase, number in more.items()),
        bytes_per_s=times.spec.storage * BYTES_PER_GBIT,
        node_s=max(each.node_bytes for each in reads.values()) / times.node_bytes_per_s,
    )

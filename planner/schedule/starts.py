"""Compute how long units take to start, and so how long before a window their start must begin.

    start = pods, then weights, then join, maps, graphs, ready

The spec gives the time of each stage except the weights; CPUs capture no graphs. All nodes of all starting units read
weights at once. A node is limited by its own link, and all nodes together by the storage. If a start begins while an
earlier start still reads, it waits for that one to finish, so the storage is never idle and the last byte arrives as
early as in any other order.

    loaded(i) = max(begin(i), loaded(i - 1)) + bytes(i) / storage, and >= begin(i) + bytes of a node / its link

All starts begin equally long before their windows, so a longer warm-up moves all of them together. The shortest
sufficient warm-up is therefore the sum of the other stages and the longest time to load of any start of the day.

A node reads the weights that its GPUs share once, and the expert slots of each GPU. Experts that two of its GPUs hold
count twice, so the result is slightly above the bytes really read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.quantities import BYTES_PER_GBIT
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import node_bytes
from planner.spec.schedule import StartSpec
from planner.spec.schema import Spec

MAPS_S = 5.0  # assumed: time to read and check the expert maps with the launch file
READY_S = 10.0  # the period of a readiness probe is 10 s unless given (kubernetes.io, configure probes)


@dataclass(frozen=True)
class UnitRead:
    """The reading of weights when one unit starts: how many nodes read, and how many bytes each of them reads."""

    nodes: int
    node_bytes: float


@dataclass(frozen=True)
class StartTimes:
    """The times and weights that decide how long units take to start: fixed stages, and weights to read."""

    spec: StartSpec
    node_bytes_per_s: float  # of a node's own link
    units: Mapping[Phase, UnitRead]  # what one unit of each phase reads

    @property
    def fixed_s(self) -> float:
        """The seconds of all stages of a start except reading weights."""
        return self.spec.pods + self.after_weights_s

    @property
    def after_weights_s(self) -> float:
        """The seconds of the stages that follow reading weights."""
        return self.spec.join + MAPS_S + self.spec.graphs + READY_S


@dataclass(frozen=True)
class Window:
    """The number of units of each phase that are on from `minute` until the next window."""

    minute: int  # after the first day's midnight
    units: Mapping[Phase, int]


@dataclass(frozen=True)
class Start:
    """The units that start for one window, the bytes that they read, and how fast."""

    minute: int  # at which their window begins
    units: Mapping[Phase, int]  # number of starting units
    num_bytes: float  # of all their nodes
    bytes_per_s: float  # of the storage
    node_s: float  # seconds that the slowest node reads if only its own link limits it


def start_times(spec: Spec, layouts: Sequence[PhaseLayout], weights: Mapping[Phase, tuple[int, int]]) -> StartTimes:
    """Return the times and weights that decide how long units start.

    `weights` has, for one rank of each phase, the bytes of all weights and of its expert slots alone (`loaded_bytes`).
    """
    gpus_per_node = spec.cluster.gpus_per_node
    units = {
        layout.phase: UnitRead(
            nodes=layout.nodes_per_unit,
            node_bytes=node_bytes(*weights[layout.phase], layout.ep_size, layout.attention_tp, gpus_per_node),
        )
        for layout in layouts
    }
    no_graphs = {} if spec.is_on_gpus else {"graphs": 0.0}
    stages = start_stages(spec).model_copy(update=no_graphs)
    return StartTimes(stages, spec.kubernetes.load_rate * BYTES_PER_GBIT, units)


def start_stages(spec: Spec) -> StartSpec:
    """Return the times of the fixed stages of a start: the spec's, or without a schedule the defaults."""
    return spec.schedule.start if spec.schedule else StartSpec()


def starts_of(windows: Sequence[Window], times: StartTimes) -> tuple[Start, ...]:
    """Return a start for each window that turns units on, in order.

    `windows` are the windows of one or more days, sorted by time. The days repeat: after the last window comes the
    first one.
    """
    starts = []
    for index, window in enumerate(windows):
        before = windows[index - 1].units
        more = {phase: number - before[phase] for phase, number in window.units.items() if number > before[phase]}
        if more:
            starts.append(_start(window.minute, more, times))
    return tuple(starts)


def loading_times(starts: Sequence[Start], num_days: int = 1) -> tuple[float, ...]:
    """Return the seconds from each start until its units have read their weights, `[starts]`.

    Units wait for earlier starts that still read. The seconds are infinite if the days are too short to read all the
    bytes. The starts of `num_days` days repeat for ever.
    """
    if sum(each.num_bytes / each.bytes_per_s for each in starts) > num_days * DAY_S:
        return (inf,) * len(starts)
    loaded, found = -inf, [0.0] * len(starts)
    for turn in (0, 1):  # the first turn stands for the past, whose last start may still be reading
        for index, each in enumerate(starts):
            begin = each.minute * MINUTE_S + turn * num_days * DAY_S
            loaded = max(begin, loaded) + each.num_bytes / each.bytes_per_s
            found[index] = max(loaded - begin, each.node_s)
    return tuple(found)


def least_warm_up(starts: Sequence[Start], times: StartTimes, num_days: int = 1) -> float:
    """Return the shortest warm-up, in whole seconds, with which the units of all `starts` are ready in time.

    The starts are those of `num_days` days, which repeat. Return infinity if no warm-up suffices.
    """
    longest = max(loading_times(starts, num_days), default=0.0)
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

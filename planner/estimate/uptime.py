"""Estimate how often units fail, how many node-hours failures cost, and how many spare nodes are needed.

    failures of a node      per hour: 1 / node + GPUs / gpu + NICs x (1 / nic + 1 / network), each divisor a mean time
                            between failures (below); or 1 / mtbf if the spec gives it
    failures of a unit      those of its nodes while it is on: a unit with a dead rank stops
    lost node-hours         failures x nodes of the unit x recovery, because all its nodes wait for the recovery
    nodes being repaired    Poisson with mean failures x repair (a queue with servers for all: M/G/infinity)
    spares                  the fewest that are enough for the required share of the time

The number of failures depends on the number of nodes, and the cost of a failure on the unit's size. So units of half
the size lose half as much in total, and half as much capacity at once.

Failures are assumed independent. A switch that stops several units is worse at that moment, but the same on average;
`failures.py` has the worst case of each kind of domain.

The mean times follow from Meta's counts in 54 days on 16,384 H100 GPUs in 2,048 nodes, 419 unexpected interruptions in
all (Llama 3, arXiv 2407.21783, table 5, as quoted by glennklockwood.com/garden/component-reliability). Those 54 days
are 21.2 million GPU-hours and 2.65 million node-hours:

    gpu      148 faulty GPUs + 72 memory + 19 SRAM + 17 system processor + 6 silent corruption + 6 thermal = 268
    node     32 host maintenance + 3 SSD + 3 power + 2 chassis + 2 I/O board + 2 CPU + 2 memory            =  46
    nic      7 NICs, one a GPU
    network  35 switches and cables, by the GPU whose NIC they join

The other 63 are software failures of training: bugs, dependencies, time-outs. They say nothing about serving.
"""

from collections.abc import Iterable, Sequence
from math import ceil, exp, lgamma, log

from planner.facts.day import DAY_MINUTES, MINUTE_S
from planner.facts.part import Part
from planner.facts.quantities import read_seconds
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import nodes_of, spares_with
from planner.layout.unit import Unit
from planner.spec.resolved import ResolvedSpec
from planner.spec.schedule import ScheduleSpec, active_minutes
from planner.spec.schema import Spec
from planner.spec.undecided import is_undecided
from planner.spec.uptime import UptimeSpec

HOUR_S = 3600
HOURS = 24
MAX_SPARES = 10_000
NODE_H, GPU_H, NIC_H, NETWORK_H = (
    57_700,
    79_200,
    3_030_000,
    607_000,
)  # mean hours between failures, from the counts above


class PhaseUptime(Part):
    """A phase's expected failures on an average day, and the capacity that they cost."""

    failures_per_day: float
    node_hours_lost_per_day: float
    capacity_at_once: float  # share of the phase's units that one failure stops
    availability: float  # share of the unit-hours of the phase's schedule in which a unit really serves


class Uptime(Part):
    """A deployment's expected failures on an average day, the capacity that they cost, and the spares needed."""

    phases: dict[Phase, PhaseUptime]
    failures_per_day: float
    nodes_in_repair: float
    availability: float  # required by the spec
    spares_needed: int
    spares: int  # in the spec


def estimate_uptime(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> Uptime | None:
    """Return the expected failures of each phase and the spares needed, or None if the spec has no `uptime`."""
    asked = spec.written.uptime
    if asked is None:
        return None
    phases = {layout.phase: _phase_uptime(spec, asked, layout) for layout in layouts}
    failures_per_day = sum(each.failures_per_day for each in phases.values())
    in_repair = failures_per_day / HOURS * asked.repair / HOUR_S
    return Uptime(
        phases=phases,
        failures_per_day=failures_per_day,
        nodes_in_repair=in_repair,
        availability=asked.availability,
        spares_needed=fewest_spares(in_repair, asked.availability),
        spares=len(spec.cluster.spares),
    )


def recovery_s(spec: Spec) -> float:
    """Return the seconds from a node's loss until its unit serves again on a spare: `uptime.recovery`, or a warm-up."""
    if spec.uptime is not None:
        return spec.uptime.recovery
    usual = read_seconds(ScheduleSpec.model_fields["warm_up"].default) or 0.0
    return usual if spec.schedule is None or is_undecided(spec.schedule.warm_up) else spec.schedule.warm_up


def outage_share(spec: Spec, phase: Phase) -> float:
    """Return the share of an hour for which a unit of `phase` is down after it loses a node; 1 without a spare."""
    has_spare = spares_with(spec.cluster, spec.gpu_name(phase), spec.kubernetes.tolerations)
    return min(recovery_s(spec) / HOUR_S, 1.0) if has_spare else 1.0


def suggest_spare(spec: Spec, units: Iterable[Unit], phase: Phase) -> str:
    """Return words that suggest an idle node as a spare for units of `phase`.

    Returns an empty string if no node is idle, or if the spec has spares already.
    """
    if spec.cluster.spares:
        return ""
    taken = {node for unit in units for node in unit.nodes}
    nodes = nodes_of(spec.cluster, (spec.gpu_name(phase),), spec.kubernetes.tolerations)
    idle = [each.name for each in nodes if each.unusable is None and each.name not in taken]
    if not idle:
        return ""
    minutes = ceil(recovery_s(spec) / MINUTE_S)
    return f"with cluster.spares: [{idle[-1]}] the unit serves again after {minutes} min"


def fewest_spares(nodes_in_repair: float, availability: float) -> int:
    """Return the fewest spares that cover the nodes in repair for `availability` of the time."""
    enough, spares = _poisson(nodes_in_repair, 0), 0
    while enough < availability and spares < MAX_SPARES:
        spares += 1
        enough += _poisson(nodes_in_repair, spares)
    return spares


def _poisson(mean: float, number: int) -> float:
    """Return the Poisson probability of exactly `number` events with this mean."""
    return exp(number * log(mean) - mean - lgamma(number + 1)) if mean else float(number == 0)


def _phase_uptime(spec: ResolvedSpec, asked: UptimeSpec, layout: PhaseLayout) -> PhaseUptime:
    on = [active_minutes(spec.written.schedule, layout.phase, index) for index in range(layout.num_units)]
    unit_hours = sum(on) / (DAY_MINUTES / HOURS)
    rate = layout.nodes_per_unit * _node_failures_per_hour(spec, asked, layout)
    failures, recovery = unit_hours * rate, asked.recovery / HOUR_S
    return PhaseUptime(
        failures_per_day=failures,
        node_hours_lost_per_day=failures * layout.nodes_per_unit * recovery,
        capacity_at_once=1 / layout.num_units,
        availability=1 / (1 + rate * recovery),
    )


def _node_failures_per_hour(spec: ResolvedSpec, asked: UptimeSpec, layout: PhaseLayout) -> float:
    """Return the failures per hour of one node as a unit sees them: of the node, and of the GPUs and NICs in use.

    A unit may use only some of a node's GPUs. With `uptime.mtbf` all failures are in that figure.
    """
    if asked.mtbf is not None:
        return HOUR_S / asked.mtbf
    gpus = min(layout.ep_size, spec.cluster.gpus_per_node)
    nics = gpus / (spec.gpu_of(layout.phase).gpus_per_nic or 1)
    return 1 / NODE_H + gpus / GPU_H + nics * (1 / NIC_H + 1 / NETWORK_H)

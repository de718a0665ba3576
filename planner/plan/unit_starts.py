"""How long units of a plan take to start: the stages of a start, and the weights that each unit reads.

A start has the stages of `schedule/starts.py`, in which each unit reads all its weights. Nobody has measured these
times for a deployment of many nodes, and the time to pull images is left out.
"""

from collections.abc import Mapping

from planner.facts.day import HOUR_MINUTES
from planner.facts.quantities import BYTES_PER_GBIT
from planner.facts.terms import Phase
from planner.layout.memory import node_bytes
from planner.plan.plan import Plan
from planner.schedule.starts import StartTimes, UnitRead, Window, starts_of
from planner.spec.schedule import StartSpec


def single_start_s(plan: Plan) -> float | None:
    """Return the seconds in which one unit of each phase starts, all together; None if weights are unknown."""
    return joint_start_s(plan, dict.fromkeys(plan.phases, 1))


def joint_start_s(plan: Plan, starting: Mapping[Phase, int]) -> float | None:
    """Return the seconds until the `starting` units of each phase are ready, if they start together beside all others.

    None if the size of some phase's weights is unknown.
    """
    start, reads = start_stages(plan), unit_reads(plan)
    if reads.keys() != plan.phases.keys():
        return None
    all_on = {phase: len(plan.units_of(phase)) for phase in plan.phases}
    serving = {phase: number - starting.get(phase, 0) for phase, number in all_on.items()}
    times = StartTimes(start, plan.kubernetes.load_rate * BYTES_PER_GBIT, reads)
    (read,) = starts_of([Window(0, serving), Window(HOUR_MINUTES, all_on)], times)
    return times.fixed_s + max(read.num_bytes / read.bytes_per_s, read.node_s)


def unit_reads(plan: Plan) -> dict[Phase, UnitRead]:
    """Return the weights that a starting unit of each phase reads, for phases with planned memory."""
    gpus_per_node = plan.spec.cluster.gpus_per_node
    found = {}
    for phase, memory in plan.memory.items():
        shape, parts = plan.phases[phase], (memory.weights_bytes, memory.weights.routed)
        found[phase] = UnitRead(
            nodes=shape.nodes_per_unit,
            node_bytes=node_bytes(*parts, shape.ep_size, shape.attention_tp, gpus_per_node),
        )
    return found


def start_stages(plan: Plan) -> StartSpec:
    """Return the stages of a start: the spec's, or the defaults without a schedule."""
    return plan.spec.schedule.start if plan.spec.schedule else StartSpec()

"""Estimate how long a change takes, from the stages of a start and the weights that units read.

    together    drain + start of all that start together
    in turn     (drain + start of one unit of each phase) x turns of the phase with most
    minutes     the longer of the two, plus the drain of removed units

A start has the stages of `schedule/starts.py`, in which each unit reads its weights whole. Nobody has measured this for
a deployment of many nodes, and the time to pull images is left out.
"""

from collections.abc import Sequence
from math import ceil

from planner.diff.change import ENDING_FATES, STARTING_FATES, UnitChange
from planner.facts.day import HOUR_MINUTES, MINUTE_S
from planner.facts.quantities import BYTES_PER_GBIT
from planner.facts.terms import Phase
from planner.layout.memory import node_bytes
from planner.plan.plan import Plan
from planner.schedule.starts import READY_S, StartTimes, UnitRead, Window, starts_of
from planner.spec.start import StartSpec

__all__ = ["rollout_minutes", "start_stages", "unit_reads"]


def rollout_minutes(plan: Plan, changes: Sequence[UnitChange], *, in_turns: bool) -> int | None:
    """Return the whole minutes until all pods are ready, with every unit on; None if unit reads are unknown."""
    turns = [each for each in changes if each.in_turn and in_turns]
    together = [each for each in changes if each.change in STARTING_FATES and each not in turns]
    one_each = list({each.phase: each for each in turns}.values())
    most_turns = max((sum(each.phase == one.phase for each in turns) for one in one_each), default=0)
    together_s, turn_s = _joint_start_s(plan, together), _joint_start_s(plan, one_each)
    if together_s is None or turn_s is None:
        return None
    leave_s = plan.drain_s if any(each.change == "removed" for each in changes) else 0.0
    drain_s = plan.drain_s if any(each.change in ENDING_FATES for each in together) else 0.0
    return ceil((leave_s + max(drain_s + together_s, most_turns * (plan.drain_s + turn_s))) / MINUTE_S)


def unit_reads(plan: Plan) -> dict[Phase, UnitRead]:
    """Return what a starting unit of each phase reads, for phases with planned memory."""
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


def _joint_start_s(plan: Plan, starting: Sequence[UnitChange]) -> float | None:
    """Return the seconds until all of `starting` are ready if they start together; None if reads are unknown."""
    start, reads = start_stages(plan), unit_reads(plan)
    more = {phase: sum(each.phase == phase for each in starting) for phase in plan.phases}
    if not any(more.values()):
        return start.pods + READY_S if starting else 0.0  # gateway and controller read no weights
    if reads.keys() != plan.phases.keys():
        return None
    serving = {phase: len(plan.units_of(phase)) - number for phase, number in more.items()}
    windows = [Window(0, serving), Window(HOUR_MINUTES, {phase: len(plan.units_of(phase)) for phase in plan.phases})]
    times = StartTimes(start, plan.kubernetes.load_rate * BYTES_PER_GBIT, reads)
    (read,) = starts_of(windows, times)
    return times.fixed_s + max(read.num_bytes / read.bytes_per_s, read.node_s)

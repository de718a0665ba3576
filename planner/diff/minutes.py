"""Estimate how long a change takes, from the stages of starts and the weights that units read.

    together    drain + start of all that start together
    in turn     drain + start of one unit of each phase, as often as the phase with most turns has some
    minutes     the longer of the two, after the drain of units that leave

A start has the stages of `schedule/starts.py`, where each unit reads its weights whole. Nobody has measured this for a
deployment of many nodes, and how long images take to be pulled is in no formula.
"""

from collections.abc import Sequence
from math import ceil

from planner.diff.change import ENDS, STARTS, UnitChange
from planner.facts.day import HOUR_MINUTES, MINUTE_S
from planner.facts.quantities import BYTES_PER_GBIT
from planner.facts.terms import Phase
from planner.layout.memory import node_bytes
from planner.plan.plan import Plan
from planner.schedule.starts import READY_S, StartTimes, UnitRead, Window, starts_of
from planner.spec.start import StartSpec

__all__ = ["minutes_of", "reads_of", "start_of"]


def minutes_of(plan: Plan, changes: Sequence[UnitChange], *, in_turns: bool) -> int | None:
    """Return the whole minutes until all is ready, while every unit is on; None where what units read is not known."""
    turns = [each for each in changes if each.in_turn and in_turns]
    together = [each for each in changes if each.change in STARTS and each not in turns]
    one_each = list({each.phase: each for each in turns}.values())
    most_turns = max((sum(each.phase == one.phase for each in turns) for one in one_each), default=0)
    together_s, turn_s = _starts_s(plan, together), _starts_s(plan, one_each)
    if together_s is None or turn_s is None:
        return None
    leave_s = plan.drain_s if any(each.change == "removed" for each in changes) else 0.0
    drain_s = plan.drain_s if any(each.change in ENDS for each in together) else 0.0
    return ceil((leave_s + max(drain_s + together_s, most_turns * (plan.drain_s + turn_s))) / MINUTE_S)


def reads_of(plan: Plan) -> dict[Phase, UnitRead]:
    """Return what a unit of each phase reads when it starts; nothing of phases whose memory is not planned."""
    gpus_per_node = plan.spec.cluster.gpus_per_node
    found = {}
    for phase, memory in plan.memory.items():
        shape, parts = plan.phases[phase], (memory.weights_bytes, memory.weights.routed)
        found[phase] = UnitRead(
            nodes=shape.nodes_per_unit,
            node_bytes=node_bytes(*parts, shape.ep_size, shape.attention_tp, gpus_per_node),
        )
    return found


def start_of(plan: Plan) -> StartSpec:
    """Return the stages of a start, those by default for a spec without a day."""
    return plan.spec.schedule.start if plan.spec.schedule else StartSpec()


def _starts_s(plan: Plan, starting: Sequence[UnitChange]) -> float | None:
    """Return the seconds until all of these are ready, which start together."""
    start, reads = start_of(plan), reads_of(plan)
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

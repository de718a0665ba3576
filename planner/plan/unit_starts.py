"""How long units of a plan take to start: the stages of a start, and the weights that each unit reads.

A start has the stages of `schedule/starts.py`, in which each unit reads all its weights. Nobody has measured these
times for a deployment of many nodes, and the time to pull images is left out.
"""

from collections.abc import Mapping

from planner.facts.day import HOUR_MINUTES
from planner.facts.terms import Phase
from planner.layout.layout import layout_of
from planner.plan.plan import Plan
from planner.plan.sections import weights_read
from planner.schedule.starts import StartTimes, Window, start_times, starts_of


def unit_start_times(plan: Plan) -> StartTimes:
    """Return what determines how long the plan's units take to start."""
    layouts = [
        layout_of(plan.spec, phase, each.num_logical_experts, each.shared_per_gpu)
        for phase, each in plan.phases.items()
    ]
    return start_times(plan.spec, layouts, weights_read(plan.memory, plan.reads))


def single_start_s(plan: Plan) -> float:
    """Return the seconds in which one unit of each phase starts, all together."""
    return joint_start_s(plan, dict.fromkeys(plan.phases, 1))


def joint_start_s(plan: Plan, starting: Mapping[Phase, int]) -> float:
    """Return the seconds until each phase's `starting` units are ready, if they start at once while others serve."""
    times = unit_start_times(plan)
    all_on = {phase: len(plan.units_of(phase)) for phase in plan.phases}
    serving = {phase: number - starting.get(phase, 0) for phase, number in all_on.items()}
    (read,) = starts_of([Window(0, serving), Window(HOUR_MINUTES, all_on)], times)
    return times.fixed_s + max(read.num_bytes / read.bytes_per_s, read.node_s)

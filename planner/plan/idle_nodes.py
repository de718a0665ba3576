"""Nodes that no unit takes, and what the loss of another node costs while they are no spares.

A unit that loses a node stops. A spare takes the node's place, and the unit serves again after `uptime.recovery` or a
warm-up. Without a spare it is out until its node is mended. So a plan that leaves nodes idle says what a lost node
stops, at the time when fewest units are on, and which node to name as a spare.
"""

from math import ceil

from planner.cluster.inventory import nodes_of
from planner.estimate.uptime import outage_of_an_hour, recovery_s
from planner.facts.counted import counted
from planner.facts.day import MINUTE_S
from planner.facts.terms import Phase
from planner.plan.compiled import Compiled
from planner.search.fleet import MOST_REFUSED

__all__ = ["loss_text", "offered_spare"]


def loss_text(plan: Compiled) -> str:
    """Return how many nodes are idle, and what the loss of another one stops.

    Empty where none is idle, or where a spare takes over before MOST_REFUSED of an hour's requests are lost.
    """
    idle = {phase: nodes for phase in plan.spec.phases if (nodes := _idle_nodes(plan, phase))}
    if not idle:
        return ""
    num_on, at, phase = min(_fewest_on(plan, each) for each in idle)
    unit = f"the only {phase} unit that is on" if num_on == 1 else f"1 of {num_on} {phase} units"
    loss = f"{counted(len(idle[phase]), 'node')}. Losing another one stops {unit} {at}"
    if offer := offered_spare(plan, phase):
        return f"{loss}, until that node is mended: {offer}."
    if outage_of_an_hour(plan.spec, phase) / num_on <= MOST_REFUSED:
        return ""
    return f"{loss}, for the {_recovery(plan)} that a unit takes to serve on a spare."


def offered_spare(plan: Compiled, phase: Phase) -> str:
    """Return which idle node could be a spare for units of `phase`; empty where none is idle, or spares are named."""
    idle = _idle_nodes(plan, phase)
    if not idle or plan.spec.cluster.spares:
        return ""
    return f"with cluster.spares: [{idle[-1]}] the unit serves again after {_recovery(plan)}"


def _idle_nodes(plan: Compiled, phase: Phase) -> tuple[str, ...]:
    """Return the nodes that no unit takes, of those on which a unit of `phase` can run."""
    spec, taken = plan.spec, {node for unit in plan.units for node in unit.nodes}
    nodes = nodes_of(spec.cluster, (spec.gpu_name(phase),), spec.kubernetes.tolerations)
    return tuple(each.name for each in nodes if each.unusable is None and each.name not in taken)


def _fewest_on(plan: Compiled, phase: Phase) -> tuple[int, str, Phase]:
    """Return the fewest units of `phase` that are on at a time, and that time."""
    always = [(sum(unit.phase == phase for unit in plan.units), "at any time", phase)]
    steps = plan.schedule.all_steps if plan.schedule is not None else ()
    return min([(step.num_units[phase], f"at {step.at}", phase) for step in steps if step.num_units[phase]] or always)


def _recovery(plan: Compiled) -> str:
    return f"{ceil(recovery_s(plan.spec) / MINUTE_S)} min"

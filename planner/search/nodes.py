"""How many nodes a cluster needs whose `nodes` are left to the planner.

Where units are written, it needs what they take. Where they are `auto` too, it needs the fewest nodes that serve the
traffic's peak hour: each phase takes the layout and the count of units that do so on fewest nodes, and neither waits
for the other, since no node is scarce.
"""

from collections.abc import Mapping

from planner.facts.terms import Phase
from planner.problems.errors import SpecError, Violation
from planner.search.asked import LayoutOf
from planner.search.decision import Decision
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.cluster import MAX_NODES
from planner.spec.undecided import AUTO, is_undecided

__all__ = ["demand_to_meet", "require_speeds", "with_counted_nodes", "with_room"]


def demand_to_meet(spec: ResolvedSpec) -> Mapping[Phase, float] | None:
    """Return tokens/s that each phase must make, where the nodes follow from them; None where nodes are there.

    Raises SpecError where neither units nor traffic say how many nodes there must be.
    """
    free = [phase for phase in spec.phases if is_undecided(spec.phase(phase).units)]
    if not is_undecided(spec.cluster.nodes) or not free:
        return None
    if spec.written.traffic is None:
        rule = "S728 must be a number when units are auto and there is no traffic"
        reason = "without traffic, the planner counts units from nodes, or nodes from units"
        fix = "write cluster.nodes, or units of each phase, or traffic"
        raise SpecError([spec.problem(Violation("cluster.nodes", AUTO, rule, reason, fix))])
    follows = spec.written.schedule is not None and is_undecided(spec.written.schedule.windows)
    capacity = 1 + (spec.written.schedule.headroom if spec.written.schedule and follows else 0)
    return {phase: spec.written.traffic.peak_per_s(phase) * capacity for phase in spec.phases}


def with_room(spec: ResolvedSpec) -> ResolvedSpec:
    """Return `spec` with more nodes than any units take, in place of `auto`, for as long as it is being decided."""
    return with_values(spec, {"cluster.nodes": MAX_NODES}) if is_undecided(spec.cluster.nodes) else spec


def require_speeds(spec: ResolvedSpec) -> None:
    """Raise SpecError where traffic decides the nodes, and nobody knows what a node serves."""
    from planner.estimate.case import is_predictable  # only who asks for speed should wait for its imports

    if all(is_predictable(spec, phase) for phase in spec.phases):
        return  # nothing fits into memory, which is said with what would
    rule = "S728 must be a number when speeds are not known"
    reason = "nobody can predict how many nodes the traffic's peak hour needs"
    violation = Violation("cluster.nodes", AUTO, rule, reason, "write nodes, or units of each phase")
    raise SpecError([spec.problem(violation)])


def with_counted_nodes(
    spec: ResolvedSpec, layout_of: LayoutOf, demand: Mapping[Phase, float] | None
) -> tuple[ResolvedSpec, Decision]:
    """Return `spec`, whose units are known, with the nodes that they take; spares come on top."""
    asked = " and ".join(f"{rate:,.0f} tokens/s of {phase}" for phase, rate in (demand or {}).items())
    why = f"the fewest that serve the traffic's peak hour: {asked}" if demand else "what the units take"
    layouts = [layout_of(spec, phase) for phase in spec.phases]
    nodes = sum(each.num_units * each.nodes_per_unit for each in layouts) + len(spec.cluster.spares)
    return with_values(spec, {"cluster.nodes": nodes}), Decision("cluster.nodes", nodes, why)

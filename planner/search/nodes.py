"""What traffic asks for where it counts the units, and how many nodes a cluster has whose `nodes` are `auto`.

Where units are written, a cluster needs what they take. Where they are `auto` too, it needs the fewest nodes that serve
the traffic's peak hour: each phase takes the layout and the count of units that do so on fewest nodes. The same number
is the least that a cluster must have whose nodes are given, and whose schedule follows the traffic.
"""

from planner.estimate.uptime import outage_of_an_hour
from planner.problems.errors import SpecError
from planner.problems.finding import Finding
from planner.search.asked import LayoutOf
from planner.search.decision import Decision
from planner.search.fleet import Demand
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.cluster import MAX_NODES
from planner.spec.undecided import AUTO, is_undecided

__all__ = ["demand_to_meet", "require_speeds", "with_counted_nodes", "with_room"]


def demand_to_meet(spec: ResolvedSpec) -> Demand | None:
    """Return what each phase must make where traffic counts its units: nodes follow, or windows do; else None.

    Raises SpecError where neither units nor traffic say how many nodes there must be.
    """
    free = [phase for phase in spec.phases if is_undecided(spec.phase(phase).units)]
    is_counted, traffic, day = is_undecided(spec.cluster.nodes), spec.written.traffic, spec.written.schedule
    follows = day if day is not None and is_undecided(day.windows) else None
    if not free or not (is_counted or follows):
        return None
    if traffic is None and is_counted:
        raise SpecError([spec.locate(_nothing_to_count())])
    if traffic is None or (traffic.profile is None and follows):
        return None  # windows without a profile are refused when they are decided
    return Demand(
        tokens_per_s={phase: traffic.peak_per_s(phase) for phase in spec.phases},
        capacity=1 + (follows.headroom if follows else 0),
        floor={phase: follows.min_units.of(phase) if follows else 1 for phase in spec.phases},
        outage={phase: 1.0 if is_counted else outage_of_an_hour(spec.written, phase) for phase in spec.phases},
        counts_nodes=is_counted,
    )


def _nothing_to_count() -> Finding:
    rule = "S728 must be a number when units are auto and there is no traffic"
    reason = "without traffic, the planner counts units from nodes, or nodes from units"
    fix = "write cluster.nodes, or units of each phase, or traffic"
    return Finding("cluster.nodes", AUTO, rule, reason, fix)


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
    finding = Finding("cluster.nodes", AUTO, rule, reason, "write nodes, or units of each phase")
    raise SpecError([spec.locate(finding)])


def with_counted_nodes(spec: ResolvedSpec, layout_of: LayoutOf, demand: Demand | None) -> tuple[ResolvedSpec, Decision]:
    """Return `spec`, whose units are known, with the nodes that they take; spares come on top."""
    why = f"the fewest that serve the traffic's peak hour: {_in_words(demand)}" if demand else "what the units take"
    layouts = [layout_of(spec, phase) for phase in spec.phases]
    nodes = sum(each.num_units * each.nodes_per_unit for each in layouts) + len(spec.cluster.spares)
    return with_values(spec, {"cluster.nodes": nodes}), Decision("cluster.nodes", nodes, why)


def _in_words(demand: Demand) -> str:
    rates = demand.tokens_per_s.items()
    return " and ".join(f"{demand.capacity * rate:,.0f} tokens/s of {phase}" for phase, rate in rates)

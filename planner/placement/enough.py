"""Check that the cluster has enough nodes for all units, wherever they go."""

from collections.abc import Sequence

from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import Node, nodes_for
from planner.problems.finding import Finding
from planner.spec.request_lengths import assuming_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.traffic import TrafficSpec

__all__ = ["find_missing_nodes", "gpu_pools"]

MAX_DAYS = 3  # names of days in a message


def find_missing_nodes(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> list[Finding]:
    """Return a finding for the first GPU type with too few nodes, if any."""
    cluster = spec.cluster
    if isinstance(cluster.nodes, int) and _num_nodes(layouts) <= cluster.nodes - len(cluster.spares):
        return []
    pools = gpu_pools(layouts)
    nodes = nodes_for(spec)
    short = [
        (gpu, own)
        for gpu, own in pools.items()
        if _num_nodes(own) > sum(node.unusable is None and node.gpu == gpu for node in nodes)
    ]
    is_only = len(pools) == 1
    return [
        _report_shortage(spec, [node for node in nodes if is_only or node.gpu == gpu], own, None if is_only else gpu)
        for gpu, own in short[:1]
    ]


def gpu_pools(layouts: Sequence[PhaseLayout]) -> dict[str, list[PhaseLayout]]:
    """Return the phases by GPU type."""
    gpus = dict.fromkeys(layout.gpu for layout in layouts)
    return {gpu: [layout for layout in layouts if layout.gpu == gpu] for gpu in gpus}


def _num_nodes(layouts: Sequence[PhaseLayout]) -> int:
    return sum(layout.num_units * layout.nodes_per_unit for layout in layouts)


def _report_shortage(
    spec: ResolvedSpec, nodes: Sequence[Node], layouts: Sequence[PhaseLayout], gpu: str | None
) -> Finding:
    """Return the finding that `layouts` need more than these nodes; `gpu` is None if all phases share a GPU type."""
    needed = _num_nodes(layouts)
    of_units = " + ".join(f"{layout.phase} {layout.num_units} x {layout.nodes_per_unit}" for layout in layouts)
    parts = f"units x nodes of a unit: {of_units}"
    usable = sum(not node.unusable for node in nodes)
    reason = "units do not share nodes"
    num_ranks = sum(layout.num_units * layout.nodes_per_unit * layout.ranks_per_node for layout in layouts)
    if num_ranks <= usable * spec.cluster.gpus_per_node:
        reason = "units cannot share a node yet"
    reason += _explain_unit_sizes(spec, layouts) + _explain_unit_counts(spec, layouts)
    if isinstance(spec.cluster.nodes, int):
        num_spares = len(spec.cluster.spares)
        least, kept = needed + num_spares, f", + spares {num_spares}" if num_spares else ""
        rule = f"S701 must be at least {least} ({parts}{kept})"
        return Finding("cluster.nodes", len(nodes), rule, reason, f"nearest: {least}")
    unusable = [node for node in nodes if node.unusable]
    more = ", ..." if len(unusable) > 3 else ""
    whys = ", ".join(f"{node.name}: {node.unusable}" for node in unusable[:3])
    there = f"only {usable} of {len(nodes)} are usable ({whys}{more})" if unusable else f"there are only {usable}"
    of_gpu = f" of {gpu}" if gpu else ""
    rule = f"S701 must have at least {counted(needed, 'usable node')}{of_gpu} ({parts}), but {there}"
    return Finding("cluster.nodes", None, rule, reason, f"add {counted(needed - usable, 'node')}")


def _explain_unit_sizes(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> str:
    """Return which unit sizes `auto` chose; empty if none."""
    chosen = [
        f"EP{each.ep_size} for {each.phase}" for each in layouts if f"{each.phase}.ep_size" in spec.document.autos
    ]
    return f", and auto took {' and '.join(chosen)} to hold what is asked for" if chosen else ""


def _explain_unit_counts(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> str:
    """Return why windows of traffic need so many units; empty if the spec gives the numbers."""
    if not spec.has_windows_of_traffic or (traffic := spec.written.traffic) is None:
        return ""
    if kept_on := _always_on_units(spec, layouts):
        units = " and ".join(f"{number} of {phase}" for phase, number in kept_on.items())
        others = [each for each in layouts if each.phase not in kept_on]
        return f", and schedule.min_units keeps {units} on at all times" + _explain_demand(spec, traffic, others)
    return _explain_demand(spec, traffic, layouts)


def _always_on_units(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> dict[Phase, int]:
    """Return the number of units of each phase whose units are always on."""
    schedule = spec.written.schedule
    floors = {} if schedule is None else {each.phase: schedule.min_units.of(each.phase) for each in layouts}
    return {each.phase: floors[each.phase] for each in layouts if each.num_units == floors.get(each.phase, 0) > 1}


def _explain_demand(spec: ResolvedSpec, traffic: TrafficSpec, layouts: Sequence[PhaseLayout]) -> str:
    """Return which demand these phases' units must serve; empty without phases."""
    busiest = f"the busiest hour of {_busiest_field(traffic)}"
    if any(f"{each.phase}.units" in spec.document.autos for each in layouts):
        assuming = assuming_lengths(spec.written)
        names = " and ".join(str(each.phase) for each in layouts)
        needed = "all of these" if len(layouts) == len(spec.phases) else f"those of {names}"
        return f", and {busiest} needs {needed}{f', where auto {assuming}' if assuming else ''}"
    if not layouts or traffic.capacity is None or traffic.capacity >= traffic.busiest:
        return ""
    carried = f"the units that are written carry a demand of {traffic.capacity:,.6g} (traffic.capacity)"
    return f", and {carried}, while {busiest} asks for {traffic.busiest:,.6g}"


def _busiest_field(traffic: TrafficSpec) -> str:
    """Return the field with the highest demand."""
    other = max(traffic.other_days, key=lambda each: max(each.profile), default=None)
    if other is None or traffic.profile is None or max(other.profile) <= max(traffic.profile):
        return "traffic.history, as forecast" if traffic.history else "traffic.profile"
    more = ", ..." if len(other.days) > MAX_DAYS else ""
    return f"traffic.other_days ({', '.join(other.days[:MAX_DAYS])}{more})"

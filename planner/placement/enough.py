"""Check that the cluster has enough nodes for all units, wherever they go."""

from collections.abc import Sequence

from planner.facts.quantities import counted
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import Node, nodes_for
from planner.problems.finding import Finding
from planner.spec.request_lengths import describe_assumed_lengths
from planner.spec.resolved import ResolvedSpec


def find_missing_nodes(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> list[Finding]:
    """Return a finding for the first GPU type that has too few usable nodes, or no finding."""
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
    """Return GPU type -> layouts of the phases that run on it."""
    gpus = dict.fromkeys(layout.gpu for layout in layouts)
    return {gpu: [layout for layout in layouts if layout.gpu == gpu] for gpu in gpus}


def _num_nodes(layouts: Sequence[PhaseLayout]) -> int:
    return sum(layout.num_units * layout.nodes_per_unit for layout in layouts)


def _report_shortage(
    spec: ResolvedSpec, nodes: Sequence[Node], layouts: Sequence[PhaseLayout], gpu: str | None
) -> Finding:
    """Return the finding that `layouts` need more than `nodes`; `gpu` is None if all phases share a GPU type."""
    needed = _num_nodes(layouts)
    of_units = " + ".join(f"{layout.phase} {layout.num_units} x {layout.nodes_per_unit}" for layout in layouts)
    parts = f"units x nodes of a unit: {of_units}"
    usable = sum(not node.unusable for node in nodes)
    reason = "units do not share nodes"
    num_ranks = sum(layout.num_units * layout.nodes_per_unit * layout.ranks_per_node for layout in layouts)
    if num_ranks <= usable * spec.cluster.gpus_per_node:
        reason = "units cannot share a node yet"
    reason += _explain_unit_sizes(spec, layouts) + _explain_unit_counts(spec)
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
    """Return a clause on the unit sizes that `auto` chose; empty if it chose none."""
    chosen = [
        f"EP{each.ep_size} for {each.phase}" for each in layouts if f"{each.phase}.ep_size" in spec.document.autos
    ]
    return f", and auto took {' and '.join(chosen)} to hold what is asked for" if chosen else ""


def _explain_unit_counts(spec: ResolvedSpec) -> str:
    """Return a clause on what sets the number of units if windows follow the traffic; empty if windows do not."""
    if not spec.has_windows_of_traffic:
        return ""
    are_counted = any(f"{phase}.units" in spec.document.autos for phase in spec.phases)
    assuming = describe_assumed_lengths(spec.written) if are_counted else ""
    counted_by = ". The number of units follows from traffic's busiest hour and schedule.min_units"
    return f"{counted_by}. There auto {assuming}" if assuming else counted_by

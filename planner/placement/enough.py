"""Whether the cluster has enough nodes for all units, wherever they go."""

from collections.abc import Sequence

from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import Node, nodes_for
from planner.problems.finding import Finding
from planner.spec.request_lengths import assuming_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.traffic import TrafficSpec

__all__ = ["gpu_pools", "missing_nodes"]

MAX_DAYS = 3  # names of days in a message


def missing_nodes(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> list[Finding]:
    """Return what is found of the first GPU type of which the cluster has too few nodes; nothing where there is none.

    It asks how many there are, and not where units go.
    """
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
        _too_few(spec, [node for node in nodes if is_only or node.gpu == gpu], own, None if is_only else gpu)
        for gpu, own in short[:1]
    ]


def gpu_pools(layouts: Sequence[PhaseLayout]) -> dict[str, list[PhaseLayout]]:
    """Return GPU -> the phases that run on it."""
    gpus = dict.fromkeys(layout.gpu for layout in layouts)
    return {gpu: [layout for layout in layouts if layout.gpu == gpu] for gpu in gpus}


def _num_nodes(layouts: Sequence[PhaseLayout]) -> int:
    return sum(layout.num_units * layout.nodes_per_unit for layout in layouts)


def _too_few(spec: ResolvedSpec, nodes: Sequence[Node], layouts: Sequence[PhaseLayout], gpu: str | None) -> Finding:
    """Count all nodes or, where phases run on several GPUs, those with `gpu`."""
    needed = _num_nodes(layouts)
    of_units = " + ".join(f"{layout.phase} {layout.num_units} x {layout.nodes_per_unit}" for layout in layouts)
    parts = f"units x nodes of a unit: {of_units}"
    usable = sum(not node.unusable for node in nodes)
    reason = "units do not share nodes"
    num_ranks = sum(layout.num_units * layout.nodes_per_unit * layout.ranks_per_node for layout in layouts)
    if num_ranks <= usable * spec.cluster.gpus_per_node:
        reason = "units cannot share a node yet"
    reason += _why_so_large(spec, layouts) + _why_so_many(spec, layouts)
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


def _why_so_large(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> str:
    """Say which units' sizes are auto's; empty where all are written."""
    chosen = [
        f"EP{each.ep_size} for {each.phase}" for each in layouts if f"{each.phase}.ep_size" in spec.document.autos
    ]
    return f", and auto took {' and '.join(chosen)} to hold what is asked for" if chosen else ""


def _why_so_many(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> str:
    """Say what counts the units of windows that are auto; empty where they are as many as are written."""
    if not spec.has_windows_of_traffic or (traffic := spec.written.traffic) is None:
        return ""
    if kept_on := _kept_on(spec, layouts):
        units = " and ".join(f"{number} of {phase}" for phase, number in kept_on.items())
        others = [each for each in layouts if each.phase not in kept_on]
        return f", and schedule.min_units keeps {units} on at all times" + _why_so_many_of_demand(spec, traffic, others)
    return _why_so_many_of_demand(spec, traffic, layouts)


def _kept_on(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> dict[Phase, int]:
    """Return the units of each phase that has no more than are always on."""
    schedule = spec.written.schedule
    floors = {} if schedule is None else {each.phase: schedule.min_units.of(each.phase) for each in layouts}
    return {each.phase: floors[each.phase] for each in layouts if each.num_units == floors.get(each.phase, 0) > 1}


def _why_so_many_of_demand(spec: ResolvedSpec, traffic: TrafficSpec, layouts: Sequence[PhaseLayout]) -> str:
    """Say which demand the units of these phases are for; empty where there are none."""
    busiest = f"the busiest hour of {_busiest(traffic)}"
    if any(f"{each.phase}.units" in spec.document.autos for each in layouts):
        assuming = assuming_lengths(spec.written)
        names = " and ".join(str(each.phase) for each in layouts)
        needed = "all of these" if len(layouts) == len(spec.phases) else f"those of {names}"
        return f", and {busiest} needs {needed}{f', where auto {assuming}' if assuming else ''}"
    if not layouts or traffic.capacity is None or traffic.capacity >= traffic.busiest:
        return ""
    carried = f"the units that are written carry a demand of {traffic.capacity:,.6g} (traffic.capacity)"
    return f", and {carried}, while {busiest} asks for {traffic.busiest:,.6g}"


def _busiest(traffic: TrafficSpec) -> str:
    """Return the field that has the entry with most demand."""
    other = max(traffic.other_days, key=lambda each: max(each.profile), default=None)
    if other is None or traffic.profile is None or max(other.profile) <= max(traffic.profile):
        return "traffic.history, as forecast" if traffic.history else "traffic.profile"
    more = ", ..." if len(other.days) > MAX_DAYS else ""
    return f"traffic.other_days ({', '.join(other.days[:MAX_DAYS])}{more})"

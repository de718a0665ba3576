"""Units to nodes.

Each unit has its nodes to itself, one pod a node, on nodes that take pods and have the right GPUs. Within that, what is
good is counted, in this order, each against a bound that no placement can beat (`placement_quality.py`):
    1. whole units under as few leaf switches as possible
    2. states of the schedule that use few nodes leave whole racks free
    3. no rack and no power domain takes more decode units with it than it must
    4. few nodes change hands, compared with a previous plan

Greedy, a few times over: units that are on longest go first, so that those that are switched off together stand
together; each goes under the leaf switch and into the racks that it leaves least room in. What a previous plan says is
tried too, and the best of the results by the counts above is taken; of equals, the one that moves least.

It does not look at traffic between units: KV goes from any prefill to any decode.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner import names
from planner.check import CheckedSpec
from planner.errors import InfeasibleError, Violation
from planner.inventory import Node, nodes_of
from planner.parallelism import PhaseLayout
from planner.placement_quality import Objective, Wanted, measure
from planner.spec import Phase
from planner.windows import active_minutes

__all__ = ["Placement", "Rank", "Unit", "place_units"]

Assignment = dict[str, list[Node]]  # unit name -> its nodes, in order


@dataclass(frozen=True)
class Rank:
    """One process of a unit, on one GPU."""

    node: str
    local_rank: int  # on its node
    rank: int  # in its unit


@dataclass(frozen=True)
class Unit:
    """What is placed, drained, scaled and healed as one."""

    name: str
    phase: Phase
    index: int  # in its phase
    nodes: tuple[str, ...]
    ranks_per_node: int
    why: str  # these nodes

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Node by node, so that neighbours in rank are neighbours on a node."""
        places = [(node, local) for node in self.nodes for local in range(self.ranks_per_node)]
        return tuple(Rank(node, local, rank) for rank, (node, local) in enumerate(places))


@dataclass(frozen=True)
class Placement:
    """All units on their nodes, how good that is, and which nodes could not be used."""

    units: tuple[Unit, ...]
    objectives: tuple[Objective, ...]
    unusable: Mapping[str, str]  # node -> why


def place_units(
    spec: CheckedSpec, layouts: Sequence[PhaseLayout], previous: Mapping[str, Sequence[str]] | None = None
) -> Placement:
    """All units on disjoint nodes. `previous`: where an earlier plan had them, by unit.

    Raises InfeasibleError when the cluster has too few nodes.
    """
    nodes = nodes_of(spec.spec.cluster)
    usable = [node for node in nodes if node.unusable is None]
    wanted = _wanted(spec, layouts)
    needed = sum(each.num_nodes for each in wanted)
    if needed > len(usable):
        raise InfeasibleError([spec.problem(_too_few(spec, nodes, needed, layouts))])
    before = previous or {}
    candidates = [_keep(wanted, usable, before), _fill(wanted, usable), _fill(_largest_first(wanted), usable)]
    measured = [(measure(wanted, each, usable, spec.spec.schedule, before), each) for each in candidates]
    objectives, best = min(measured, key=lambda pair: [objective.excess for objective in pair[0]])
    ranks = {layout.phase: layout.ranks_per_node for layout in layouts}
    units = tuple(_unit(each, best[each.name], ranks[each.phase], before) for each in wanted)
    return Placement(units, objectives, {node.name: node.unusable for node in nodes if node.unusable})


def _wanted(spec: CheckedSpec, layouts: Sequence[PhaseLayout]) -> list[Wanted]:
    return [
        Wanted(
            name=names.unit_name(spec.spec.name, layout.phase, index),
            phase=layout.phase,
            index=index,
            num_nodes=layout.nodes_per_unit,
            minutes=active_minutes(spec.spec.schedule, layout.phase, index),
        )
        for layout in layouts
        for index in range(layout.num_units)
    ]


def _too_few(spec: CheckedSpec, nodes: Sequence[Node], needed: int, layouts: Sequence[PhaseLayout]) -> Violation:
    parts = " + ".join(f"{layout.phase} {layout.num_units} x {layout.nodes_per_unit}" for layout in layouts)
    reason = "every unit has its nodes to itself"
    if isinstance(spec.spec.cluster.nodes, int):
        rule = f"S701 must be at least {needed} ({parts})"
        return Violation("cluster.nodes", len(nodes), rule, reason, f"nearest: {needed}")
    unusable = [node for node in nodes if node.unusable]
    kept_away = "".join(f", {node.name} {node.unusable}" for node in unusable[:3])
    usable = len(nodes) - len(unusable)
    rule = f"S701 must have at least {needed} usable nodes ({parts}), {usable} of {len(nodes)} are{kept_away}"
    return Violation("cluster.nodes", None, rule, reason, f"add {needed - usable} nodes")


def _largest_first(wanted: Iterable[Wanted]) -> list[Wanted]:
    return sorted(wanted, key=lambda unit: -unit.num_nodes)


def _keep(wanted: Sequence[Wanted], usable: Sequence[Node], previous: Mapping[str, Sequence[str]]) -> Assignment:
    """Every unit that can stays where it was; the others are placed around them."""
    by_name = {node.name: node for node in usable}
    kept: Assignment = {}
    taken: set[str] = set()
    for unit in wanted:
        names_before = previous.get(unit.name, ())
        is_whole = len(names_before) == unit.num_nodes and len(set(names_before)) == unit.num_nodes
        if is_whole and all(name in by_name and name not in taken for name in names_before):
            kept[unit.name] = [by_name[name] for name in names_before]
            taken.update(names_before)
    others = [unit for unit in wanted if unit.name not in kept]
    return kept | _fill(others, [node for node in usable if node.name not in taken])


def _fill(wanted: Sequence[Wanted], usable: Sequence[Node]) -> Assignment:
    """Place `wanted` on `usable`, those that are on longest first."""
    free: dict[str, list[Node]] = defaultdict(list)  # leaf -> its free nodes
    for node in usable:
        free[node.leaf].append(node)
    result: Assignment = {}
    for unit in sorted(wanted, key=lambda unit: -unit.minutes):
        chosen = _choose(free, unit.num_nodes)
        result[unit.name] = sorted(chosen, key=lambda node: node.index)
        taken = {node.index for node in chosen}
        for leaf in {node.leaf for node in chosen}:
            free[leaf] = [node for node in free[leaf] if node.index not in taken]
    return result


def _choose(free: Mapping[str, Sequence[Node]], num_nodes: int) -> list[Node]:
    """From the leaf with the least room that is enough, else from as few leaves as possible."""
    enough = [leaf for leaf in free if len(free[leaf]) >= num_nodes]
    if enough:
        return _from_racks(free[min(enough, key=lambda leaf: len(free[leaf]))], num_nodes)
    chosen: list[Node] = []
    for leaf in sorted(free, key=lambda leaf: -len(free[leaf])):
        chosen += _from_racks(free[leaf], min(num_nodes - len(chosen), len(free[leaf])))
    return chosen


def _from_racks(nodes: Sequence[Node], num_nodes: int) -> list[Node]:
    """From the rack with the least room that is enough, else from the fullest racks on."""
    if num_nodes == len(nodes):
        return list(nodes)
    racks: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        racks[node.rack].append(node)
    chosen: list[Node] = []
    for rack in sorted(racks, key=lambda rack: -len(racks[rack])):
        enough = [other for other in racks if len(racks[other]) >= num_nodes - len(chosen)]
        if enough:
            return chosen + racks[min(enough, key=lambda rack: len(racks[rack]))][: num_nodes - len(chosen)]
        chosen += racks.pop(rack)
    return chosen


def _unit(unit: Wanted, nodes: Sequence[Node], ranks_per_node: int, previous: Mapping[str, Sequence[str]]) -> Unit:
    node_names = tuple(node.name for node in nodes)
    is_kept = tuple(previous.get(unit.name, ())) == node_names
    why = "where the previous plan has it" if is_kept else _spread(nodes)
    return Unit(unit.name, unit.phase, unit.index, node_names, ranks_per_node, why)


def _spread(nodes: Sequence[Node]) -> str:
    """`1 leaf, 5 racks`, of what the spec names."""
    kinds = {"leaf": {node.leaf for node in nodes} - {""}, "rack": {node.rack for node in nodes} - {""}}
    plural = {"leaf": "leaves", "rack": "racks"}
    parts = [f"{len(places)} {kind if len(places) == 1 else plural[kind]}" for kind, places in kinds.items() if places]
    return "in " + ", ".join(parts) if parts else "the first that were free"

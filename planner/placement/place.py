"""The pass that places units on nodes, and changes as little as possible of a previous plan.

A unit stays on its nodes if the previous plan gave it as many as it needs now and all of them are usable. Moving it
would restart it, and no better placement is worth that. Only the other units are placed, around those that stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from planner.facts import names
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import Node, gpu_pools, nodes_for, nvlink_domains
from planner.layout.unit import Unit
from planner.placement.greedy import place_greedily
from planner.placement.nodes import choose_nodes
from planner.placement.quality import Objective, measure
from planner.placement.task import UnplacedUnit, make_task
from planner.spec.resolved import ResolvedSpec
from planner.spec.schedule import active_minutes


@dataclass(frozen=True)
class Placement:
    """All units with their nodes, the quality of this placement, and the nodes that are spare or unusable."""

    units: tuple[Unit, ...]
    objectives: tuple[Objective, ...]
    method: str  # `greedy` (searched) or `previous` (every unit stays on its nodes)
    why: str  # why the search ended
    unusable: Mapping[str, str]  # node -> why no unit can use it
    spares: tuple[str, ...]  # spare nodes, in the cluster's order


def place_units(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], previous: Mapping[str, Sequence[str]] | None = None
) -> Placement:
    """Return a placement of all units, each on nodes of its own. `previous` has unit -> its nodes in an earlier plan.

    The caller has checked that the cluster has enough nodes (`short_gpu`).
    """
    pools = gpu_pools(layouts)
    nodes = nodes_for(spec)
    before = _drop_shared_nodes(previous or {})
    placed = [_place_pool(spec, own, [node for node in nodes if node.gpu == gpu], before) for gpu, own in pools.items()]
    together = _join_pools(dict(zip(pools, placed, strict=True)), [layout.phase for layout in layouts])
    unusable = {node.name: node.unusable for node in nodes if node.unusable and not node.is_spare}
    return replace(together, unusable=unusable, spares=tuple(node.name for node in nodes if node.is_spare))


def _place_pool(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], nodes: Sequence[Node], before: Mapping[str, Sequence[str]]
) -> Placement:
    """Place the units of the phases that run on one GPU type; `nodes` are all nodes with GPUs of that type.

    `before` has unit -> its nodes in an earlier plan.
    """
    wanted, domains = _list_units(spec, layouts), _nvlink_domains(spec, layouts[0].phase, nodes)
    usable = [node for node in nodes if node.unusable is None]
    task = make_task(wanted, usable, spec.written.schedule, before, domains)
    stays = bool(task.kept) and not task.movable
    assignment = task.kept_assignment if stays else place_greedily(task)
    objectives = measure(task, assignment)
    on_nodes = choose_nodes(task, assignment, before)
    place_of = {node.name: node for node in usable}
    ranks = {layout.phase: layout.ep_size for layout in layouts}
    units = tuple(
        Unit(
            each.name,
            each.phase,
            each.index,
            own,
            ranks[each.phase],
            _explain_nodes(own, place_of, before.get(each.name, ())),
        )
        for each, own in zip(wanted, on_nodes, strict=True)
    )
    if stays:
        return Placement(units, objectives, "previous", "every unit stays on its nodes", {}, ())
    is_proven = all(objective.is_proven for objective in objectives)
    why = "every value is at its bound" if is_proven else "its steps found nothing better"
    return Placement(units, objectives, "greedy", why, {}, ())


def _nvlink_domains(spec: ResolvedSpec, phase: Phase, nodes: Sequence[Node]) -> Mapping[str, str]:
    """Return node -> its NVLink domain; empty if no domain has several nodes. `nodes` have the GPU of `phase`."""
    domains = nvlink_domains(nodes, spec.gpu_of(phase), spec.cluster.gpus_per_node)
    return domains if len(set(domains.values())) < len(domains) else {}


def _join_pools(placed: Mapping[str, Placement], phases: Sequence[Phase]) -> Placement:
    """Join the placements on several GPU types into one, with units in the order of the phases.

    The placements share no nodes. The result has no unusable nodes and no spares, which the caller adds.
    """
    if len(placed) == 1:
        return next(iter(placed.values()))
    units = sorted(
        chain.from_iterable(each.units for each in placed.values()), key=lambda unit: phases.index(unit.phase)
    )
    objectives = tuple(
        replace(each, name=f"{each.name} ({gpu})") for gpu, pool in placed.items() for each in pool.objectives
    )
    methods = {each.method for each in placed.values()}
    method = next(iter(methods)) if len(methods) == 1 else "greedy"
    why = "; ".join(f"{gpu}: {each.why}" for gpu, each in placed.items())
    return Placement(tuple(units), objectives, method, why, {}, ())


def _drop_shared_nodes(previous: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return unit -> its previous nodes. A node that several units had goes to the first of them only."""
    taken: set[str] = set()
    result: dict[str, list[str]] = {}
    for unit, nodes in previous.items():
        result[unit] = [node for node in dict.fromkeys(nodes) if node not in taken]
        taken.update(nodes)
    return result


def _list_units(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> list[UnplacedUnit]:
    return [
        UnplacedUnit(
            name=names.unit_name(spec.written.name, layout.phase, index),
            phase=layout.phase,
            index=index,
            num_nodes=layout.nodes_per_unit,
            minutes=active_minutes(spec.written.schedule, layout.phase, index),
        )
        for layout in layouts
        for index in range(layout.num_units)
    ]


def _explain_nodes(own: Sequence[str], place_of: Mapping[str, Node], before: Sequence[str]) -> str:
    """Return words on how many leaves and racks a unit's nodes are spread over, and how many it had before."""
    if tuple(before) == tuple(own):
        return "where the previous plan has it"
    stayed = len(set(before) & set(own))
    return _describe_spread([place_of[name] for name in own]) + (
        f"; {stayed} of {len(own)} nodes as before" if stayed else ""
    )


def _describe_spread(nodes: Sequence[Node]) -> str:
    """Return words on how many leaves and racks nodes are spread over: `in 1 leaf, 5 racks`.

    If the spec names neither, the words say that the nodes were the first free ones.
    """
    kinds = {"leaf": {node.leaf for node in nodes} - {""}, "rack": {node.rack for node in nodes} - {""}}
    plural = {"leaf": "leaves", "rack": "racks"}
    parts = [f"{len(places)} {kind if len(places) == 1 else plural[kind]}" for kind, places in kinds.items() if places]
    return "in " + ", ".join(parts) if parts else "the first that were free"

"""Find the worst loss of one GPU, node, rack or power domain.

A unit with a dead rank stops: its ranks step together, and the bundled runtime, like most, cannot continue without one.
So the report counts whole units as lost.

An expert goes dark when all its replicas are lost. A runtime that masks dead ranks could serve as long as no expert is
dark. An expert is covered against the loss of a node if it has replicas on two nodes or more, in every layer.

Probabilities are not estimated here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from planner.expert_map import ExpertMap
from planner.facts.part import Part
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import named_places, nodes_of
from planner.layout.unit import Unit
from planner.spec.resolved import ResolvedSpec

__all__ = ["Loss", "report_failures"]

SharedDomain = Literal["rack", "power"]  # domains that units can share

SHARED_DOMAINS: tuple[SharedDomain, ...] = ("rack", "power")


class Loss(Part):
    """The worst effect on a phase of losing one failure domain."""

    units: int  # that stop
    of_units: int  # of the phase
    dark_experts: int  # in the worst layer: logical experts without a replica elsewhere
    at: str  # where it happens


def report_failures(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], units: Sequence[Unit], maps: Mapping[Phase, ExpertMap]
) -> dict[Phase, dict[str, Loss]]:
    """Return each phase's worst loss by kind of domain, smallest domain first.

    Racks and power domains are included if the spec names them.
    """
    nodes = nodes_of(spec.cluster)
    places = {kind: named_places(nodes, kind) for kind in SHARED_DOMAINS}
    return {layout.phase: dict(_losses(layout, units, maps[layout.phase], places)) for layout in layouts}


def _losses(
    layout: PhaseLayout, units: Sequence[Unit], expert_map: ExpertMap, places: Mapping[SharedDomain, Mapping[str, str]]
) -> Iterator[tuple[str, Loss]]:
    own = [unit for unit in units if unit.phase == layout.phase]
    dark_of_ranks = _dark_experts(expert_map, layout, layout.ep_size)
    dark_of_nodes = _dark_experts(expert_map, layout, layout.nodes_per_unit)
    rank, node = (worst.index(max(worst)) for worst in (dark_of_ranks, dark_of_nodes))
    at = f"{own[0].name} rank {rank}"
    yield "gpu", Loss(units=1, of_units=len(own), dark_experts=dark_of_ranks[rank], at=at)
    yield "node", Loss(units=1, of_units=len(own), dark_experts=dark_of_nodes[node], at=own[0].nodes[node])
    for domain in SHARED_DOMAINS:
        if loss := _worst_shared_loss(own, expert_map, layout, places[domain]):
            yield domain, loss


def _worst_shared_loss(
    units: Sequence[Unit],
    expert_map: ExpertMap,
    layout: PhaseLayout,
    place_of: Mapping[str, str],
) -> Loss | None:
    """Return the loss of the domain that stops most units, or None if the spec names no such domains.

    Among equals, the one with most dark experts in one unit counts.
    """
    stopped: dict[str, dict[str, list[int]]] = {}  # place -> unit -> indices of its nodes there
    for unit in units:
        for index, name in enumerate(unit.nodes):
            stopped.setdefault(place_of[name], {}).setdefault(unit.name, []).append(index)
    if "" in stopped:
        return None
    most = max(map(len, stopped.values()))
    dark: dict[tuple[int, ...], int] = {}  # cached, because many units lose the same nodes
    worst, where = -1, ""
    for place, in_units in stopped.items():
        if len(in_units) == most:
            for lost in map(tuple, in_units.values()):
                if lost not in dark:
                    dark[lost] = _count_dark(expert_map, layout, lost)
                if dark[lost] > worst:
                    worst, where = dark[lost], place
    return Loss(units=most, of_units=len(units), dark_experts=worst, at=where)


def _dark_experts(expert_map: ExpertMap, layout: PhaseLayout, num_parts: int) -> list[int]:
    """Return for each of `num_parts` equal parts of a unit how many experts exist only there, in the worst layer.

    Slots are numbered part by part, so an expert is only in one part if its first and last replica are.
    """
    parts = [slot * num_parts // layout.num_physical_experts for slot in range(layout.num_physical_experts)]
    worst = [0] * num_parts
    for slots in expert_map.physical_to_logical:
        last = dict(zip(slots, parts, strict=True))
        first = dict(zip(reversed(slots), reversed(parts), strict=True))
        dark = Counter(part for expert, part in last.items() if first[expert] == part)
        worst = [max(worst[part], dark[part]) for part in range(num_parts)]
    return worst


def _count_dark(expert_map: ExpertMap, layout: PhaseLayout, lost_nodes: Sequence[int]) -> int:
    """Return how many experts of the worst layer have all their replicas on `lost_nodes`."""
    per_node = layout.num_physical_experts // layout.nodes_per_unit
    worst = 0
    for slots in expert_map.physical_to_logical:
        left = {expert for slot, expert in enumerate(slots) if slot // per_node not in lost_nodes}
        worst = max(worst, layout.num_logical_experts - len(left))
    return worst

"""The worst that happens when one GPU, node, rack or power domain dies.

A unit with a dead rank stops: its ranks step together, and the bundled runtime, like most, does not go on without one.
So whole units are lost at once, and that is the capacity which the report counts.

Which experts go dark says what a runtime that masks dead ranks could save: one that has replicas elsewhere in the unit
could go on, with the others' tokens on fewer GPUs. Coverage counts them: an expert is covered against the loss of a
node when its replicas are on two nodes at least, in every layer.

It estimates no probabilities.
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

Shared = Literal["rack", "power"]  # by units

SHARED: tuple[Shared, ...] = ("rack", "power")


class Loss(Part):
    """The worst that the loss of one failure domain does to a phase."""

    units: int  # that stop
    of_units: int  # of the phase
    dark_experts: int  # of a layer of a unit: logical experts without a replica elsewhere
    at: str  # where it happens


def report_failures(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], units: Sequence[Unit], maps: Mapping[Phase, ExpertMap]
) -> dict[Phase, dict[str, Loss]]:
    """Return for each phase the worst loss of every kind of domain whose places the spec names, smallest first."""
    nodes = nodes_of(spec.cluster)
    places = {kind: named_places(nodes, kind) for kind in SHARED}
    return {layout.phase: dict(_losses(layout, units, maps[layout.phase], places)) for layout in layouts}


def _losses(
    layout: PhaseLayout, units: Sequence[Unit], expert_map: ExpertMap, places: Mapping[Shared, Mapping[str, str]]
) -> Iterator[tuple[str, Loss]]:
    own = [unit for unit in units if unit.phase == layout.phase]
    dark_of_ranks = _dark_experts(expert_map, layout, layout.ep_size)
    dark_of_nodes = _dark_experts(expert_map, layout, layout.nodes_per_unit)
    rank, node = (worst.index(max(worst)) for worst in (dark_of_ranks, dark_of_nodes))
    at = f"{own[0].name} rank {rank}"
    yield "gpu", Loss(units=1, of_units=len(own), dark_experts=dark_of_ranks[rank], at=at)
    yield "node", Loss(units=1, of_units=len(own), dark_experts=dark_of_nodes[node], at=own[0].nodes[node])
    for domain in SHARED:
        if loss := _shared(own, expert_map, layout, places[domain]):
            yield domain, loss


def _shared(
    units: Sequence[Unit],
    expert_map: ExpertMap,
    layout: PhaseLayout,
    place_of: Mapping[str, str],
) -> Loss | None:
    """Return the domain that stops most units; among equals, the one that darkens most experts of one of them.

    None when the spec names no such place.
    """
    stopped: dict[str, dict[str, list[int]]] = {}  # place -> unit -> indices of its nodes there
    for unit in units:
        for index, name in enumerate(unit.nodes):
            stopped.setdefault(place_of[name], {}).setdefault(unit.name, []).append(index)
    if "" in stopped:
        return None
    most = max(map(len, stopped.values()))
    dark: dict[tuple[int, ...], int] = {}  # units stand alike in many places
    worst, where = -1, ""
    for place, in_units in stopped.items():
        if len(in_units) == most:
            for lost in map(tuple, in_units.values()):
                if lost not in dark:
                    dark[lost] = _dark_with(expert_map, layout, lost)
                if dark[lost] > worst:
                    worst, where = dark[lost], place
    return Loss(units=most, of_units=len(units), dark_experts=worst, at=where)


def _dark_experts(expert_map: ExpertMap, layout: PhaseLayout, num_parts: int) -> list[int]:
    """Return how many experts have all replicas in each of `num_parts` equal parts of a unit, in its worst layer.

    Slots are numbered part by part: an expert is in one part alone if its first replica and its last are in that one.
    """
    parts = [slot * num_parts // layout.num_physical_experts for slot in range(layout.num_physical_experts)]
    worst = [0] * num_parts
    for slots in expert_map.physical_to_logical:
        last = dict(zip(slots, parts, strict=True))
        first = dict(zip(reversed(slots), reversed(parts), strict=True))
        dark = Counter(part for expert, part in last.items() if first[expert] == part)
        worst = [max(worst[part], dark[part]) for part in range(num_parts)]
    return worst


def _dark_with(expert_map: ExpertMap, layout: PhaseLayout, lost_nodes: Sequence[int]) -> int:
    """Return how many experts of the worst layer have no replica outside of `lost_nodes`."""
    per_node = layout.num_physical_experts // layout.nodes_per_unit
    worst = 0
    for slots in expert_map.physical_to_logical:
        left = {expert for slot, expert in enumerate(slots) if slot // per_node not in lost_nodes}
        worst = max(worst, layout.num_logical_experts - len(left))
    return worst

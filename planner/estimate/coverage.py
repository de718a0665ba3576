"""The failure domains of a unit, and whether its experts survive the loss of one node, or of one rack.

Each expert needs two replicas in two failure domains (`expert_map/domains.py`). So 256 experts need 512 slots.
DeepSeek's decode unit of 144 GPUs then needs 4 slots per GPU instead of 2, which takes 5.1 GB more on each GPU.

Units of a phase share one expert map. If units are spread over racks in different ways, the map must suit all of them.

Coverage pays only with a runtime that continues without a dead rank. The bundled runtime does not yet: it stops the
whole unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.expert_map import (
    Domains,
    ExpertMap,
    consecutive_domains,
    count_uncovered,
    fewest_slots_per_gpu,
)
from planner.facts.terms import Coverage, Phase
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import named_places, nodes_of
from planner.layout.unit import Unit
from planner.spec.resolved import ResolvedSpec


@dataclass(frozen=True)
class FailureDomains:
    """The failure domain of each rank of a unit, by kind: its GPU, its node and its rack.

    `rack` is empty if the spec names no racks.
    """

    gpu: Domains
    node: Domains
    rack: Domains

    def for_coverage(self, coverage: Coverage) -> Domains:
        """Return the domains over which `coverage` spreads experts; empty for `none`."""
        return {"none": (), "node": self.node, "rack": self.rack}[coverage]


def failure_domains(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], units: Sequence[Unit] = ()
) -> dict[Phase, FailureDomains]:
    """Return the failure domain of each rank of a phase's units. Without placed `units`, racks stay empty."""
    racks = named_places(nodes_of(spec.cluster), "rack") if units else {}
    return {
        layout.phase: FailureDomains(
            gpu=consecutive_domains(layout.ep_size, 1),
            node=consecutive_domains(layout.ep_size, layout.ranks_per_node),
            rack=_rack_partitions([unit for unit in units if unit.phase == layout.phase], layout, racks),
        )
        for layout in layouts
    }


def _rack_partitions(units: Sequence[Unit], layout: PhaseLayout, racks: Mapping[str, str]) -> Domains:
    """Return each distinct way in which units are spread over racks, as the rack number of each rank.

    Racks are numbered from 0 in the order of ranks. The result is empty if some rack is not named.
    """
    partitions: dict[tuple[int, ...], None] = {}
    for unit in units:
        names = [racks[node] for node in unit.nodes]
        if "" in names:
            return ()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        partitions[tuple(numbers[name] for name in names for _ in range(layout.ranks_per_node))] = None
    return tuple(partitions)


def fewest_slots(spec: ResolvedSpec, ep_size: int, coverage: Coverage = "node") -> int | None:
    """Return the fewest slots per GPU with which all experts survive the loss of one node, or of one rack.

    Returns None if one node or rack holds the whole unit. A unit is assumed to fill one node, and one rack, after the
    other.
    """
    nodes = spec.cluster.rack_size or 1 if coverage == "rack" else 1
    domains = consecutive_domains(ep_size, min(nodes * spec.cluster.gpus_per_node, ep_size))
    return fewest_slots_per_gpu(spec.model.num_routed_experts, domains)


def uncovered_experts(expert_map: ExpertMap, places: FailureDomains) -> dict[str, int]:
    """Return the number of experts with all replicas in one domain, in the worst layer, by kind of domain.

    Racks are omitted if unknown.
    """
    domains = {"gpu": places.gpu, "node": places.node} | ({"rack": places.rack} if places.rack else {})
    return {kind: count_uncovered(expert_map.physical_to_logical, each) for kind, each in domains.items()}

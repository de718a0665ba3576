"""The spec's `coverage`: no expert of a unit goes dark when one node, or one rack, dies; or why that cannot be.

The planner has the slots and the places, `expert_map/domains.py` the arithmetic: two replicas for every expert, in two
domains. For 256 experts that is 512 slots; DeepSeek's decode unit of 144 GPUs then has 4 a GPU instead of 2, for 5.1 GB
more on each.

Units of a phase share one map. Where they stand in racks differently the map is right for all of them.

It pays only with a runtime that goes on without a dead rank: as it is, a unit with one stops as a whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.expert_map import (
    Domains,
    ExpertMap,
    consecutive_domains,
    count_uncovered,
    fewest_slots_per_gpu,
)
from planner.facts.quantities import gb
from planner.facts.terms import Coverage, Phase
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import named_places, nodes_of
from planner.layout.unit import Unit
from planner.layout.weights import weights_of
from planner.problems.finding import Finding
from planner.problems.fix import nearest
from planner.spec.resolved import ResolvedSpec

__all__ = [
    "FailureDomains",
    "MeanOf",
    "failure_domains",
    "fewest_slots",
    "racks_are_open",
    "too_little_coverage",
    "uncovered_experts",
    "uncovered_maps",
]

MeanOf = Callable[[PhaseLayout, int, Domains], float | None]  # max over mean of a layout's map with so many slots


@dataclass(frozen=True)
class FailureDomains:
    """The domain of each GPU of a phase's units, for each kind of domain; `rack` is empty when the spec names none."""

    gpu: Domains
    node: Domains
    rack: Domains

    def of(self, coverage: Coverage) -> Domains:
        """Return the domains that experts are spread over; empty for `none`."""
        return {"none": (), "node": self.node, "rack": self.rack}[coverage]


def failure_domains(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], units: Sequence[Unit] = ()
) -> dict[Phase, FailureDomains]:
    """Return for each phase the domains of its units' GPUs; without units, as far as the layout says."""
    racks = named_places(nodes_of(spec.cluster), "rack") if units else {}
    return {
        layout.phase: FailureDomains(
            gpu=consecutive_domains(layout.ep_size, 1),
            node=consecutive_domains(layout.ep_size, layout.ranks_per_node),
            rack=_racks([unit for unit in units if unit.phase == layout.phase], layout, racks),
        )
        for layout in layouts
    }


def _racks(units: Sequence[Unit], layout: PhaseLayout, racks: Mapping[str, str]) -> Domains:
    """Return one partition for each way in which units stand in racks, numbered in the order of their ranks."""
    partitions: dict[tuple[int, ...], None] = {}
    for unit in units:
        names = [racks[node] for node in unit.nodes]
        if "" in names:
            return ()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        partitions[tuple(numbers[name] for name in names for _ in range(layout.ranks_per_node))] = None
    return tuple(partitions)


def fewest_slots(spec: ResolvedSpec, ep_size: int, coverage: Coverage = "node") -> int | None:
    """Return the slots a GPU for which a unit that fills nodes, and racks, one after the other survives such a loss.

    None where all of the unit is in one node or rack.
    """
    nodes = spec.cluster.rack_size or 1 if coverage == "rack" else 1
    domains = consecutive_domains(ep_size, min(nodes * spec.cluster.gpus_per_node, ep_size))
    return fewest_slots_per_gpu(spec.model.num_routed_experts, domains)


def too_little_coverage(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], places: Mapping[Phase, FailureDomains], mean_of: MeanOf
) -> Iterator[Finding]:
    """Yield what is found of each phase whose slots or places do not suffice for the spec's `coverage`.

    It says what balance would become, where `mean_of` knows.
    """
    coverage = spec.written.coverage
    for layout in layouts if coverage != "none" else ():
        domains = places[layout.phase].of(coverage) or places[layout.phase].node
        fewest = fewest_slots_per_gpu(layout.num_logical_experts, domains)
        if fewest is None:
            yield _one_domain(coverage, layout)
        elif fewest > layout.slots_per_gpu:
            yield _too_few_slots(spec, layout, fewest, domains, mean_of)


def uncovered_maps(maps: Mapping[Phase, ExpertMap]) -> Iterator[Finding]:
    """Yield the finding about phases for which no map survives in all the ways in which their units stand in racks."""
    open_phases = [phase for phase, each in maps.items() if not each.is_covered]
    if open_phases:
        rule = f"S722 must hold in all units of {' and '.join(open_phases)}, which share one expert map"
        reason = (
            "their nodes are spread over racks in different ways, and no map was found that survives the loss of a rack"
        )
        yield Finding("coverage", "rack", rule, reason, nearest("node"))


def racks_are_open() -> Finding:
    """Return what is left to a placement: which racks hold units depends on where there is room."""
    rule = "S723 depends on the racks in which units are placed"
    return Finding("coverage", "rack", rule, "validate places no units", "run tidemill plan")


def uncovered_experts(expert_map: ExpertMap, places: FailureDomains) -> dict[str, int]:
    """Return how many experts of the worst layer have all replicas on one GPU, node and rack, by the kind of domain.

    Racks are left out where none are known.
    """
    domains = {"gpu": places.gpu, "node": places.node} | ({"rack": places.rack} if places.rack else {})
    return {kind: count_uncovered(expert_map.physical_to_logical, each) for kind, each in domains.items()}


def _one_domain(coverage: Coverage, layout: PhaseLayout) -> Finding:
    rule = f"S721 must not be {coverage}, since {layout.phase} has units inside a single {coverage}"
    reason = f"losing that {coverage} loses every replica of their experts"
    return Finding("coverage", coverage, rule, reason, nearest("none"))


def _too_few_slots(spec: ResolvedSpec, layout: PhaseLayout, fewest: int, domains: Domains, mean_of: MeanOf) -> Finding:
    """Return the slots that are lacking, and what they would cost: bytes, and what becomes of the balance."""
    coverage, redundant = spec.written.coverage, fewest * layout.ep_size - layout.num_logical_experts
    more_bytes = (fewest - layout.slots_per_gpu) * weights_of(spec.model, layout.precision).slot
    rule = (
        f"S720 must be at least {redundant} with coverage: {coverage} "
        f"({fewest} slots per GPU, so that each of {layout.num_logical_experts} experts is in two {coverage}s)"
    )
    reason = f"{fewest} slots per GPU instead of {layout.slots_per_gpu} take {gb(more_bytes)} more of each GPU"
    now, then = mean_of(layout, layout.slots_per_gpu, ()), mean_of(layout, fewest, domains)
    if now is not None and then is not None:
        is_alike = f"{then:.3f}" == f"{now:.3f}"
        reason += ", and max/mean load "
        reason += f"stays {now:.3f}" if is_alike else f"becomes {then:.3f} instead of {now:.3f}"
    path = f"{layout.phase}.redundant_experts"
    return Finding(path, spec.phase(layout.phase).redundant_experts, rule, reason, nearest(redundant))

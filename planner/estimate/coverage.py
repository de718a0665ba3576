"""Check the spec's `coverage`: whether every expert of a unit survives the loss of one node, or of one rack.

Each expert needs two replicas in two failure domains (`expert_map/domains.py`). So 256 experts need 512 slots.
DeepSeek's decode unit of 144 GPUs then needs 4 slots per GPU instead of 2, which takes 5.1 GB more on each GPU.

Units of a phase share one expert map. If units are spread over racks in different ways, the map must suit all of them.

Coverage pays only with a runtime that continues without a dead rank. The bundled runtime does not yet: it stops the
whole unit.
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

PredictBalance = Callable[
    [PhaseLayout, int, Domains], float | None
]  # (layout, slots per GPU, domains) -> max/mean load, if known


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

    Racks are numbered from 0 in the order of ranks. Returns nothing if some rack is not named.
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


def check_coverage(
    spec: ResolvedSpec,
    layouts: Sequence[PhaseLayout],
    places: Mapping[Phase, FailureDomains],
    predict_balance: PredictBalance,
) -> Iterator[Finding]:
    """Yield a finding for each phase with too few slots or domains for the spec's `coverage`.

    The finding states the balance after the fix if `predict_balance` knows it.
    """
    coverage = spec.written.coverage
    for layout in layouts if coverage != "none" else ():
        domains = places[layout.phase].for_coverage(coverage) or places[layout.phase].node
        fewest = fewest_slots_per_gpu(layout.num_logical_experts, domains)
        if fewest is None:
            yield _one_domain(coverage, layout)
        elif fewest > layout.slots_per_gpu:
            yield _too_few_slots(spec, layout, fewest, domains, predict_balance)


def check_map_coverage(maps: Mapping[Phase, ExpertMap]) -> Iterator[Finding]:
    """Yield a finding for the phases whose map misses `coverage: rack`: a unit would lose experts if it lost a rack."""
    open_phases = [phase for phase, each in maps.items() if not each.is_covered]
    if open_phases:
        rule = f"S722 must hold in all units of {' and '.join(open_phases)}, which share one expert map"
        reason = (
            "their nodes are spread over racks in different ways, and no map was found that survives the loss of a rack"
        )
        yield Finding("coverage", "rack", rule, reason, nearest("node"))


def undecided_racks() -> Finding:
    """Return the finding of `validate` for `coverage: rack`: only a placement can decide whether it is met."""
    rule = "S723 depends on the racks in which units are placed"
    return Finding("coverage", "rack", rule, "validate places no units", "run tidemill plan")


def uncovered_experts(expert_map: ExpertMap, places: FailureDomains) -> dict[str, int]:
    """Return the number of experts with all replicas in one domain, in the worst layer, by kind of domain.

    Racks are omitted if unknown.
    """
    domains = {"gpu": places.gpu, "node": places.node} | ({"rack": places.rack} if places.rack else {})
    return {kind: count_uncovered(expert_map.physical_to_logical, each) for kind, each in domains.items()}


def _one_domain(coverage: Coverage, layout: PhaseLayout) -> Finding:
    rule = f"S721 must not be {coverage}, since {layout.phase} has units inside a single {coverage}"
    reason = f"losing that {coverage} loses every replica of their experts"
    return Finding("coverage", coverage, rule, reason, nearest("none"))


def _too_few_slots(
    spec: ResolvedSpec, layout: PhaseLayout, fewest: int, domains: Domains, predict_balance: PredictBalance
) -> Finding:
    """Return a finding that says how many slots are missing, how many bytes they take, and the balance with them."""
    coverage, redundant = spec.written.coverage, fewest * layout.ep_size - layout.num_logical_experts
    more_bytes = (fewest - layout.slots_per_gpu) * weights_of(spec.model, layout.precision).slot
    rule = (
        f"S720 must be at least {redundant} with coverage: {coverage} "
        f"({fewest} slots per GPU, so that each of {layout.num_logical_experts} experts is in two {coverage}s)"
    )
    reason = f"{fewest} slots per GPU instead of {layout.slots_per_gpu} take {gb(more_bytes)} more of each GPU"
    now, then = predict_balance(layout, layout.slots_per_gpu, ()), predict_balance(layout, fewest, domains)
    if now is not None and then is not None:
        is_alike = f"{then:.3f}" == f"{now:.3f}"
        reason += ", and max/mean load "
        reason += f"stays {now:.3f}" if is_alike else f"becomes {then:.3f} instead of {now:.3f}"
    path = f"{layout.phase}.redundant_experts"
    return Finding(path, spec.phase(layout.phase).redundant_experts, rule, reason, nearest(redundant))

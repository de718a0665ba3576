"""Larger units for too little memory or too few slots, with the nodes that they take.

Candidates only: `repair.py` tries each before it is printed.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from operator import itemgetter
from typing import Any

from planner.engines.exchange_limits import takes_unit
from planner.expert_map.domains import consecutive_domains, fewest_slots_per_gpu
from planner.facts.terms import Phase
from planner.problems.fix import Change
from planner.spec.check import ResolvedSpec

__all__ = ["MAX_TRIES", "covering_slots", "lacking_nodes", "larger_phase", "larger_phases", "larger_units"]

MAX_TRIES = 24  # of one field, beyond which the next one is asked


def larger_units(spec: ResolvedSpec, phase: Phase) -> Iterator[Change]:
    """EP sizes that spread the experts evenly over more GPUs; others would break rules."""
    yield from ({f"{phase}.ep_size": size} for size in _ep_sizes(spec, phase)[1:])


def larger_phase(spec: ResolvedSpec) -> Iterator[Change]:
    """Larger units in one phase and the nodes that they take, where neither alone is enough; by steps of its size."""
    now = {phase: spec.phase(phase).ep_size for phase in spec.phases}
    larger = [(step, phase, size) for phase in now for step, size in enumerate(_ep_sizes(spec, phase)[1:])]
    for _, phase, size in sorted(larger, key=itemgetter(0)):
        yield {f"{phase}.ep_size": size, **lacking_nodes(spec, now | {phase: size})}


def larger_phases(spec: ResolvedSpec) -> Iterator[Change]:
    """Larger units in all phases and the nodes that they take, for where no single change is enough."""
    sizes = {phase: _ep_sizes(spec, phase) for phase in spec.phases}
    for step in range(1, max(map(len, sizes.values()))):
        chosen = {phase: each[min(step, len(each) - 1)] for phase, each in sizes.items()}
        yield {**{f"{phase}.ep_size": size for phase, size in chosen.items()}, **lacking_nodes(spec, chosen)}


def covering_slots(spec: ResolvedSpec) -> Iterator[Change]:
    """The slots that coverage asks for, in the units as they are, then in larger ones with the nodes that they take."""
    sizes = [_whole_nodes(spec, phase) for phase in spec.phases]
    for steps in sorted(product(*(range(min(len(each), MAX_TRIES)) for each in sizes)), key=sum):
        chosen = {phase: each[step] for phase, each, step in zip(spec.phases, sizes, steps, strict=True)}
        changes: dict[str, Any] = {}
        for phase, size in chosen.items():
            changes |= _covering(spec, phase, size)
        yield {**changes, **lacking_nodes(spec, chosen)}


def lacking_nodes(spec: ResolvedSpec, ep_sizes: Mapping[Phase, int]) -> Change:
    """More nodes, if units of `ep_sizes` need them and the spec counts them; nodes in a list cannot be invented."""
    cluster = spec.cluster
    needed = len(cluster.spares)
    needed += sum(spec.written.num_units(p) * max(1, size // cluster.gpus_per_node) for p, size in ep_sizes.items())
    return {"cluster.nodes": needed} if isinstance(cluster.nodes, int) and needed > cluster.nodes else {}


def _covering(spec: ResolvedSpec, phase: Phase, ep_size: int) -> Change:
    """What to write so that `phase` with that EP size has slots enough; nothing where it has."""
    section, num_logical = spec.phase(phase), spec.model.num_routed_experts
    per_node = min(ep_size, spec.cluster.gpus_per_node)
    fewest = fewest_slots_per_gpu(num_logical, consecutive_domains(ep_size, per_node)) or 0
    redundant = max(fewest * ep_size - num_logical, -num_logical % ep_size)
    is_enough = ep_size == section.ep_size and redundant <= section.redundant_experts
    other_size = {f"{phase}.ep_size": ep_size} if ep_size != section.ep_size else {}
    return {} if is_enough else {**other_size, f"{phase}.redundant_experts": redundant}


def _whole_nodes(spec: ResolvedSpec, phase: Phase) -> list[int]:
    """This EP size, and larger ones of whole nodes, up to two GPUs an expert."""
    ep_size, per_node = spec.phase(phase).ep_size, spec.cluster.gpus_per_node
    first = ep_size - ep_size % per_node + per_node
    larger = range(first, 2 * spec.model.num_routed_experts + 1, per_node)
    return [ep_size, *(size for size in larger if _is_exchanged(spec, phase, size))]


def _ep_sizes(spec: ResolvedSpec, phase: Phase) -> list[int]:
    """This one, and those above it that spread the experts evenly over whole nodes; others would break rules."""
    section, per_node = spec.phase(phase), spec.cluster.gpus_per_node
    physical = spec.model.num_routed_experts + section.redundant_experts
    larger = range(section.ep_size + 1, physical + 1)
    even = (size for size in larger if physical % size == 0 and (size < per_node or size % per_node == 0))
    return [section.ep_size, *(size for size in even if _is_exchanged(spec, phase, size))]


def _is_exchanged(spec: ResolvedSpec, phase: Phase, ep_size: int) -> bool:
    return takes_unit(spec.trying(phase, {"ep_size": ep_size}), phase)

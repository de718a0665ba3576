"""Other units for too few nodes: smaller ones, and one of a whole node in place of several that would share it.

Candidates only: `repair.py` tries each before it is printed.
"""

from collections.abc import Iterator, Sequence
from math import ceil, floor
from typing import Any

from planner.cluster.inventory import nodes_for
from planner.facts.terms import Phase
from planner.problems.fix import Change
from planner.spec.check import ResolvedSpec

__all__ = ["merged_units", "num_usable", "smaller_units"]


def smaller_units(spec: ResolvedSpec, *, fewest_slots: bool = False) -> Iterator[Change]:
    """Yield EP sizes of whole nodes that fit where not even one unit each does; most GPUs first.

    Units that have redundant experts keep some, unless `fewest_slots` are asked for.
    """
    per_node, usable = spec.cluster.gpus_per_node, num_usable(spec)
    most = {phase: max(1, spec.phase(phase).ep_size // per_node) for phase in spec.phases}
    if sum(most.values()) <= usable:
        return
    for chosen in _splits(usable, tuple(most.values())):
        change: dict[str, Any] = {}
        for phase, count in zip(spec.phases, chosen, strict=True):
            change |= _of_nodes(spec, phase, count, fewest_slots) if count < most[phase] else {}
        yield change


def merged_units(spec: ResolvedSpec) -> Iterator[Change]:
    """Units of a whole node, on as many GPUs or more, in place of several that would share it; then on fewer."""
    per_node = spec.cluster.gpus_per_node
    whole: dict[str, Any] = {}
    fewer: dict[str, Any] = {}
    for phase in spec.phases if spec.written.schedule is None else ():
        section = spec.phase(phase)
        if section.ep_size < per_node and section.units > 1:
            nodes = section.units * section.ep_size / per_node
            of_node, units = _of_nodes(spec, phase, 1), f"{phase}.units"
            whole |= {**of_node, units: ceil(nodes)}
            fewer |= {**of_node, units: max(floor(nodes), 1)}
    if whole:
        yield whole
    if fewer != whole:
        yield fewer


def num_usable(spec: ResolvedSpec) -> int:
    """Nodes that units may be placed on."""
    return sum(node.unusable is None for node in nodes_for(spec))


def _splits(usable: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Nodes of one or two phases, at most so many each: of all that are usable first, and the evenest first."""
    for total in range(usable, 0, -1):
        first = range(max(1, total - sum(most[1:])), min(most[0], total - len(most) + 1) + 1)
        of_total = [(count, total - count)[: len(most)] for count in first if len(most) > 1 or count == total]
        yield from sorted(of_total, key=lambda each: _unevenness(each, most))


def _unevenness(chosen: Sequence[int], most: Sequence[int]) -> tuple[int, float]:
    """How many phases lose GPUs, and how much more one loses than the other."""
    shares = [count / all_of_it for count, all_of_it in zip(chosen, most, strict=True)]
    return sum(share < 1 for share in shares), max(shares) - min(shares)


def _of_nodes(spec: ResolvedSpec, phase: Phase, num_nodes: int, fewest_slots: bool = False) -> Change:
    """A unit on so many nodes, with the nearest number of redundant experts that spreads evenly, or with the fewest."""
    now, num_logical = spec.phase(phase).redundant_experts, spec.model.num_routed_experts
    size = num_nodes * spec.cluster.gpus_per_node
    wanted = 0 if fewest_slots else now
    above = wanted + -(num_logical + wanted) % size
    kept = [each for each in (above, above - size) if each > 0 or (each == 0 and wanted == 0)]
    redundant = min(kept, key=lambda each: abs(each - wanted))
    other = {} if redundant == now else {f"{phase}.redundant_experts": redundant}
    return {f"{phase}.ep_size": size, **other}

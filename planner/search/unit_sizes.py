"""List unit sizes: the sizes that `auto` may become, and changes of size for specs short of memory, slots or nodes.

`trials.py` tries the sizes that `auto` may become. `repair.py` tries each change before offering it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, floor
from operator import itemgetter
from typing import Any

from planner.estimate.coverage import fewest_slots
from planner.facts.terms import Phase
from planner.layout.nodes import nodes_for
from planner.problems.fix import Change
from planner.rules.exchange_limits import nearest_redundant, supports_unit_size
from planner.spec.phase import MAX_REDUNDANT
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import is_undecided


def all_sizes(spec: ResolvedSpec) -> list[int]:
    """Return in ascending order the EP sizes that divide a node or fill whole nodes, up to two GPUs per expert."""
    per_node = spec.cluster.gpus_per_node
    within = [size for size in range(1, per_node + 1) if per_node % size == 0]
    return [*within, *range(2 * per_node, 2 * spec.model.num_routed_experts + 1, per_node)]


def ep_sizes(spec: ResolvedSpec, phase: Phase) -> Sequence[int]:
    """Return the EP sizes that `phase` may have: the written one, or all if it is `auto`."""
    section = spec.phase(phase)
    return all_sizes(spec) if is_undecided(section.ep_size) else [section.ep_size]


def even_redundants(spec: ResolvedSpec, phase: Phase, ep_size: int) -> range:
    """Return in ascending order the numbers of redundant experts that give all GPUs equally many slots.

    A written number is returned alone, or not at all if it does not give equally many slots.
    """
    written, num_logical = spec.phase(phase).redundant_experts, spec.model.num_routed_experts
    if is_undecided(written):
        return range(-num_logical % ep_size, min(num_logical * (ep_size - 1), MAX_REDUNDANT) + 1, ep_size)
    return range(written, written + ((num_logical + written) % ep_size == 0))


def larger_sizes(spec: ResolvedSpec, phase: Phase) -> list[int]:
    """Return the larger EP sizes of `phase` that divide its physical experts and suit the nodes and the engine."""
    section, per_node = spec.phase(phase), spec.cluster.gpus_per_node
    physical = spec.model.num_routed_experts + section.redundant_experts
    larger = range(section.ep_size + 1, physical + 1)
    even = (size for size in larger if physical % size == 0 and (size < per_node or size % per_node == 0))
    return [size for size in even if _exchange_supports(spec, phase, size)]


def larger_sizes_and_nodes(spec: ResolvedSpec) -> Iterator[Change]:
    """Yield changes to larger EP sizes and the nodes that these need: in one phase, then in all phases together."""
    sizes = {phase: larger_sizes(spec, phase) for phase in spec.phases}
    in_one = [(step, {phase: size}) for phase in sizes for step, size in enumerate(sizes[phase])]
    in_all = [
        {phase: each[min(step, len(each) - 1)] for phase, each in sizes.items() if each}
        for step in range(max(map(len, sizes.values())))
    ]
    for chosen in [*(each for _, each in sorted(in_one, key=itemgetter(0))), *in_all]:
        yield {**{f"{phase}.ep_size": size for phase, size in chosen.items()}, **node_increase(spec, chosen)}


def covering_sizes(spec: ResolvedSpec) -> Iterator[Change]:
    """Yield changes that give enough expert slots for `coverage`: at present EP sizes, then at larger ones.

    More nodes are part of a change that needs them.
    """
    sizes = [_covering_ep_sizes(spec, phase) for phase in spec.phases]
    for steps in sorted(product(*(range(len(each)) for each in sizes)), key=sum):
        chosen = {phase: each[step] for phase, each, step in zip(spec.phases, sizes, steps, strict=True)}
        change: dict[str, Any] = {}
        for phase, size in chosen.items():
            change |= _covering_change(spec, phase, size)
        yield {**change, **node_increase(spec, chosen)}


def smaller_sizes(spec: ResolvedSpec, *, fewest_slots: bool = False) -> Iterator[Change]:
    """Yield changes to smaller EP sizes of whole nodes, the largest number of GPUs first.

    Yield nothing if the usable nodes hold one unit of each phase. Units keep about their number of redundant experts;
    with `fewest_slots` they get the fewest possible.
    """
    per_node, usable = spec.cluster.gpus_per_node, num_usable(spec)
    most = {phase: max(1, spec.phase(phase).ep_size // per_node) for phase in spec.phases}
    if sum(most.values()) <= usable:
        return
    for chosen in _split_nodes(usable, tuple(most.values())):
        change: dict[str, Any] = {}
        for phase, count in zip(spec.phases, chosen, strict=True):
            change |= _resize_unit(spec, phase, count, fewest_slots) if count < most[phase] else {}
        yield change


def merged_units(spec: ResolvedSpec) -> Iterator[Change]:
    """Yield changes that replace units which each have a part of a node with units of a whole node.

    The first change has at least as many GPUs. The second has fewer, and is left out if there is no such number. There
    are no changes if the spec has a schedule.
    """
    per_node = spec.cluster.gpus_per_node
    whole: dict[str, Any] = {}
    fewer: dict[str, Any] = {}
    for phase in spec.phases if spec.written.schedule is None else ():
        section = spec.phase(phase)
        if section.ep_size < per_node and section.units > 1:
            nodes = section.units * section.ep_size / per_node
            of_node, units = _resize_unit(spec, phase, 1), f"{phase}.units"
            whole |= {**of_node, units: ceil(nodes)}
            fewer |= {**of_node, units: max(floor(nodes), 1)}
    if whole:
        yield whole
    if fewer != whole:
        yield fewer


def node_increase(spec: ResolvedSpec, ep_sizes: Mapping[Phase, int] | None = None) -> Change:
    """Return the change that raises `cluster.nodes` to hold all units; empty if the nodes suffice.

    `ep_sizes` replaces EP sizes of the spec. The change is empty too if the spec lists nodes: named nodes cannot be
    added.
    """
    cluster = spec.cluster
    sizes = {phase: spec.phase(phase).ep_size for phase in spec.phases} | dict(ep_sizes or {})
    needed = len(cluster.spares)
    needed += sum(spec.written.num_units(p) * max(1, size // cluster.gpus_per_node) for p, size in sizes.items())
    return {"cluster.nodes": needed} if isinstance(cluster.nodes, int) and needed > cluster.nodes else {}


def num_usable(spec: ResolvedSpec) -> int:
    """Return the number of the cluster's nodes that can hold units."""
    return sum(node.unusable is None for node in nodes_for(spec))


def _covering_change(spec: ResolvedSpec, phase: Phase, ep_size: int) -> Change:
    """Return the change that gives `phase` enough slots for coverage at `ep_size`; empty if it has enough already."""
    section, num_logical = spec.phase(phase), spec.model.num_routed_experts
    fewest = fewest_slots(spec, ep_size) or 0
    redundant = max(fewest * ep_size - num_logical, -num_logical % ep_size)
    is_enough = ep_size == section.ep_size and redundant <= section.redundant_experts
    other_size = {f"{phase}.ep_size": ep_size} if ep_size != section.ep_size else {}
    return {} if is_enough else {**other_size, f"{phase}.redundant_experts": redundant}


def _covering_ep_sizes(spec: ResolvedSpec, phase: Phase) -> list[int]:
    """Return the phase's present EP size, then larger ones of whole nodes, up to two GPUs per expert."""
    ep_size, per_node = spec.phase(phase).ep_size, spec.cluster.gpus_per_node
    larger = [size for size in all_sizes(spec) if size > ep_size and size >= per_node]
    return [ep_size, *(size for size in larger if _exchange_supports(spec, phase, size))]


def _exchange_supports(spec: ResolvedSpec, phase: Phase, ep_size: int) -> bool:
    return supports_unit_size(spec.with_numbers(phase, {"ep_size": ep_size}), phase)


def _split_nodes(usable: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield numbers of nodes for one or two phases, at most `usable` together and `most` each.

    The highest totals come first, of equal totals the most even split.
    """
    for total in range(usable, 0, -1):
        first = range(max(1, total - sum(most[1:])), min(most[0], total - len(most) + 1) + 1)
        of_total = [(count, total - count)[: len(most)] for count in first if len(most) > 1 or count == total]
        yield from sorted(of_total, key=lambda each: _unevenness(each, most))


def _unevenness(chosen: Sequence[int], most: Sequence[int]) -> tuple[int, float]:
    """Return how uneven a split is: (number of phases with fewer than `most` nodes, spread of the shares of `most`).

    A phase's share is its nodes over the `most` that it could have.
    """
    shares = [count / all_of_it for count, all_of_it in zip(chosen, most, strict=True)]
    return sum(share < 1 for share in shares), max(shares) - min(shares)


def _resize_unit(spec: ResolvedSpec, phase: Phase, num_nodes: int, fewest_slots: bool = False) -> Change:
    """Return the change to a unit of `num_nodes` whole nodes that gives all GPUs equally many slots.

    The number of redundant experts is the nearest to the present number or, with `fewest_slots`, the smallest.
    """
    now, size = spec.phase(phase).redundant_experts, num_nodes * spec.cluster.gpus_per_node
    redundant = nearest_redundant(spec.model.num_routed_experts, size, 0 if fewest_slots else now)
    other = {} if redundant == now else {f"{phase}.redundant_experts": redundant}
    return {f"{phase}.ep_size": size, **other}

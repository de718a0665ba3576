"""The smallest changes that would make an infeasible spec feasible, each tried before it is printed.

A pass that finds a spec infeasible knows what binds, but not whether a way out is one: more GPUs a unit may need more
nodes than there are. So changes are proposed here, field by field, and a change is printed only when the spec with it
has been checked and planned anew. At most three are, of different fields.

It changes no spec: the user does.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from operator import itemgetter
from typing import Any

from planner.cluster.inventory import nodes_of
from planner.expert_map.domains import consecutive_domains, fewest_slots_per_gpu
from planner.facts.catalog import GPUS
from planner.facts.terms import Phase
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.fix import Change, Fix, applied
from planner.spec.check import ResolvedSpec, with_values

__all__ = ["with_changes"]

MAX_CHANGES = 3
MAX_TRIES = 24  # of one field, beyond which the next one is asked

Feasible = Callable[[ResolvedSpec], bool]
Works = Callable[[Change], bool]


def with_changes(error: InfeasibleError, spec: ResolvedSpec, is_feasible: Feasible) -> InfeasibleError:
    """`error` with up to three changes of `spec` for which `is_feasible`: each would mend all of its problems."""

    def works(change: Change) -> bool:
        try:
            return is_feasible(with_values(spec, change))
        except SpecError:
            return False

    proposed = _without_repeats(_smallest_changes(spec, works), spec)
    changes = tuple(islice(proposed, MAX_CHANGES))
    changes = changes or tuple(_first(_larger_phase(spec), works)) or tuple(_first(_larger_system(spec), works))
    if not changes:
        return error
    return InfeasibleError([replace(problem, fix=_fix(changes)) for problem in error.problems])


def _without_repeats(changes: Iterable[Change], spec: ResolvedSpec) -> Iterator[Change]:
    """Each change once, without values that stand there already."""
    seen: list[Change] = []
    for change in changes:
        new = {
            path: value
            for path, value in change.items()
            if applied(spec.document.data, {path: value}) != spec.document.data
        }
        if new not in seen:
            seen.append(new)
            yield new


def _smallest_changes(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """Of each field that could help, the smallest change that does; what costs nothing to change stands first."""
    if spec.written.coverage != "none":
        yield from _first(_covering_slots(spec), works)
        yield from _first(({"coverage": less} for less in ("node", "none") if less != spec.written.coverage), works)
    for phase in spec.phases:
        yield from _first(_larger_units(spec, phase), works)
        yield from _first(_fewer_slots(spec, phase), works)
        yield from _most([f"{phase}.{_step_field(phase)}"], getattr(spec.phase(phase), _step_field(phase)), works)
    yield from _most([f"{phase}.max_request_tokens" for phase in spec.phases], _request_tokens(spec), works)
    yield from _first(_more_nodes(spec), works)
    yield from _first(_one_unit(spec), works)
    yield from _first(_uncordoned(spec), works)
    if spec.written.schedule is None:
        for phase in spec.phases:
            yield from _most([f"{phase}.units"], spec.phase(phase).units, works)
    for phase in spec.phases:
        yield from _first(_shared_attention(spec, phase), works)
    yield from _first(_larger_gpus(spec), works)


def _first(candidates: Iterable[Change], works: Works) -> Iterator[Change]:
    """The first of `candidates` that works, if one does."""
    yield from islice(filter(works, islice(candidates, MAX_TRIES)), 1)


def _most(paths: list[str], value: int, works: Works) -> Iterator[Change]:
    """The largest number below `value` that works in all `paths`, if one does: what works with more works with less."""
    least, most = (2 if paths[0].endswith("max_request_tokens") else 1), value - 1  # the least that the fields take
    if most < least or not works(dict.fromkeys(paths, least)):
        return
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if works(dict.fromkeys(paths, middle)) else (least, middle - 1)
    yield dict.fromkeys(paths, least)


def _larger_units(spec: ResolvedSpec, phase: Phase) -> Iterator[Change]:
    """EP sizes that spread the experts evenly over more GPUs; others would break rules."""
    yield from ({f"{phase}.ep_size": size} for size in _ep_sizes(spec, phase)[1:])


def _larger_phase(spec: ResolvedSpec) -> Iterator[Change]:
    """Larger units in one phase and the nodes that they take, where neither alone is enough; by steps of its size."""
    now = {phase: spec.phase(phase).ep_size for phase in spec.phases}
    larger = [(step, phase, size) for phase in now for step, size in enumerate(_ep_sizes(spec, phase)[1:])]
    for _, phase, size in sorted(larger, key=itemgetter(0)):
        yield {f"{phase}.ep_size": size, **_nodes_for(spec, now | {phase: size})}


def _larger_system(spec: ResolvedSpec) -> Iterator[Change]:
    """Larger units in all phases and the nodes that they take, for where no single change is enough."""
    sizes = {phase: _ep_sizes(spec, phase) for phase in spec.phases}
    for step in range(1, max(map(len, sizes.values()))):
        chosen = {phase: each[min(step, len(each) - 1)] for phase, each in sizes.items()}
        yield {**{f"{phase}.ep_size": size for phase, size in chosen.items()}, **_nodes_for(spec, chosen)}


def _covering_slots(spec: ResolvedSpec) -> Iterator[Change]:
    """The slots that coverage asks for, in the units as they are, then in larger ones with the nodes that they take."""
    sizes = [_whole_nodes(spec, phase) for phase in spec.phases]
    for steps in sorted(product(*(range(min(len(each), MAX_TRIES)) for each in sizes)), key=sum):
        chosen = {phase: each[step] for phase, each, step in zip(spec.phases, sizes, steps, strict=True)}
        changes: dict[str, Any] = {}
        for phase, size in chosen.items():
            changes |= _covering(spec, phase, size)
        yield {**changes, **_nodes_for(spec, chosen)}


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
    return [ep_size, *range(first, 2 * spec.model.num_routed_experts + 1, per_node)]


def _ep_sizes(spec: ResolvedSpec, phase: Phase) -> list[int]:
    """This one, and those above it that spread the experts evenly over whole nodes; others would break rules."""
    section, per_node = spec.phase(phase), spec.cluster.gpus_per_node
    physical = spec.model.num_routed_experts + section.redundant_experts
    larger = range(section.ep_size + 1, physical + 1)
    return [section.ep_size] + [
        size for size in larger if physical % size == 0 and (size < per_node or size % per_node == 0)
    ]


def _nodes_for(spec: ResolvedSpec, ep_sizes: Mapping[Phase, int]) -> Change:
    """More nodes, if units of `ep_sizes` need them and the spec counts them; nodes in a list cannot be invented."""
    cluster = spec.cluster
    needed = sum(spec.written.num_units(p) * max(1, size // cluster.gpus_per_node) for p, size in ep_sizes.items())
    return {"cluster.nodes": needed} if isinstance(cluster.nodes, int) and needed > cluster.nodes else {}


def _fewer_slots(spec: ResolvedSpec, phase: Phase) -> Iterator[Change]:
    """Redundant experts a slot a GPU fewer at a time."""
    section = spec.phase(phase)
    for redundant in range(section.redundant_experts - section.ep_size, -1, -section.ep_size):
        yield {f"{phase}.redundant_experts": redundant}


def _request_tokens(spec: ResolvedSpec) -> int:
    return spec.phase(spec.phases[0]).max_request_tokens  # equal in all phases: a rule


def _step_field(phase: Phase) -> str:
    return "max_requests" if phase == "decode" else "max_batch_tokens"


def _uncordoned(spec: ResolvedSpec) -> Iterator[Change]:
    """Listed nodes that take pods again, from the first, as few as will do."""
    nodes = spec.cluster.nodes
    cordoned = [] if isinstance(nodes, int) else [index for index, node in enumerate(nodes) if node.cordoned]
    for number in range(1, len(cordoned) + 1):
        yield {f"cluster.nodes.{index}.cordoned": False for index in cordoned[:number]}


def _more_nodes(spec: ResolvedSpec) -> Iterator[Change]:
    change = _nodes_for(spec, {phase: spec.phase(phase).ep_size for phase in spec.phases})
    if change:
        yield change


def _one_unit(spec: ResolvedSpec) -> Iterator[Change]:
    """On a single node a unit that does both, in place of two that cannot share it."""
    cluster, written = spec.cluster, spec.document.data
    usable = sum(1 for node in nodes_of(cluster) if node.unusable is None)
    sizes = {spec.phase(phase).ep_size for phase in spec.phases}
    if usable == 1 and len(spec.phases) == 2 and len(sizes) == 1 and max(sizes) <= cluster.gpus_per_node:
        both = {**written["prefill"], **written["decode"]}
        both |= {key: written["prefill"][key] for key in ("max_batch_tokens",) if key in written["prefill"]}
        yield {"mixed": {key: value for key, value in both.items() if key != "units"}, "prefill": None, "decode": None}


def _shared_attention(spec: ResolvedSpec, phase: Phase) -> Iterator[Change]:
    """More GPUs of a node to a request's attention: each then has fewer heads, and their part of the weights."""
    section = spec.phase(phase)
    on_node = min(section.ep_size, spec.cluster.gpus_per_node)
    sizes = range(section.attention_tp + 1, on_node + 1)
    yield from ({f"{phase}.attention_tp": size} for size in sizes if on_node % size == 0)


def _larger_gpus(spec: ResolvedSpec) -> Iterator[Change]:
    memory = spec.gpu.usable_bytes
    if memory is not None:
        larger = [(gpu.usable_bytes, name) for name, gpu in GPUS.items() if (gpu.usable_bytes or 0) > memory]
        yield from ({"cluster.gpu": name} for _, name in sorted(larger))


def _fix(changes: tuple[Change, ...]) -> Fix:
    """`nearest: prefill.ep_size 16, or cluster.nodes 22`."""
    return Fix(f"nearest: {', or '.join(map(_in_words, changes))}", changes)


def _in_words(change: Change) -> str:
    """What to write, and in place of what."""
    words = " and ".join(f"{path} {_written(value)}" for path, value in change.items() if value is not None)
    gone = " and ".join(path for path, value in change.items() if value is None)
    return f"{words} instead of {gone}" if gone else words


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_written(inner)}' for key, inner in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)

"""Limits of an engine's expert exchange: the number of GPUs in a unit, and the tokens in its decode steps.

`planner/facts/exchange.py` has the facts. Fixes offer only sizes that break no other rule and fit into memory.

vLLM has slots for replicas only if it can move experts (`--enable-eplb`). It refuses that option, and so every replica,
for experts in a format that it cannot move.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from planner.facts.engine_models import ENGINE_MODELS, can_move_experts
from planner.facts.exchange import EXCHANGES, MAX_DISPATCHED_TOKENS, NVLINK_PEERS, Exchange
from planner.facts.terms import Phase
from planner.layout.dispatch import dispatched_tokens
from planner.layout.memory import MemoryPlan, memory_of
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Change, Fix, nearest
from planner.rules.rule import Candidate
from planner.spec.phase import MAX_EP_SIZE, PhaseSpec
from planner.spec.resolved import ResolvedSpec


def supports_unit_size(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine can exchange expert rows between the GPUs of a unit of `phase`.

    The bundled runtime supports every number of GPUs.
    """
    exchange, ep_size = _exchange(spec, phase), spec.phase(phase).ep_size
    return exchange is None or exchange.takes(ep_size, spec.cluster.gpus_per_node, spec.gpu_of(phase))


def steps_fit_exchange(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether a decode step fits DeepEP's low-latency kernels; True if units of `phase` do not use them."""
    exchange = _exchange(spec, phase)
    if exchange is None or "low_latency" not in exchange.kernels:
        return True
    return dispatched_tokens(spec.phase(phase), spec.written.engine_name) <= MAX_DISPATCHED_TOKENS


def exchange_supports_unit_sizes(c: Candidate) -> Iterator[Finding]:
    """Reject an `ep_size` with which the engine cannot exchange expert rows on nodes of this size."""
    spec = c.resolved
    for phase in spec.phases:
        section, exchange = spec.phase(phase), _exchange(spec, phase)
        if exchange is None or supports_unit_size(spec, phase):
            continue
        per_node, gpu = spec.cluster.gpus_per_node, spec.gpu_of(phase)
        sizes = [size for size in range(2, _max_gpus(spec, phase) + 1) if exchange.takes(size, per_node, gpu)]
        rule = f"S758 must be {_sizes_in_words(exchange, sizes)} to run on {_engine_in_words(spec)}"
        fix = _offer_sizes(spec, phase)
        yield Finding(f"{phase}.ep_size", section.ep_size, rule, _explain_size_limit(spec, exchange, section), fix)


def decode_steps_fit_exchange(c: Candidate) -> Iterator[Finding]:
    """Reject a `max_requests` whose decode steps have more tokens than DeepEP's low-latency kernels take."""
    spec = c.resolved
    for phase in spec.phases:
        if steps_fit_exchange(spec, phase):
            continue
        requests = range(1, spec.phase(phase).max_requests + 1)
        most = bisect_left(
            requests,
            True,
            key=lambda each: not steps_fit_exchange(spec.with_numbers(phase, {"max_requests": each}), phase),
        )
        rule = f"S746 must be at most {most:,} to run on {spec.written.engine_name}"
        reason = f"DeepEP's low-latency kernels accept at most {MAX_DISPATCHED_TOKENS:,} tokens per GPU"
        yield Finding(f"{phase}.max_requests", requests[-1], rule, reason, nearest(most))


def fits_memory(memory: MemoryPlan | None) -> bool:
    """Return whether a GPU's memory holds the model and one request; True if the memory's size is unknown."""
    return memory is None or memory.missing_bytes <= 0


def has_replica_slots(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine can hold the redundant experts of `phase`; True if the phase has none."""
    return spec.phase(phase).redundant_experts == 0 or explain_missing_replicas(spec, phase) is None


def explain_missing_replicas(spec: ResolvedSpec, phase: Phase) -> str | None:
    """Return the reason why the engine can have only one slot per expert.

    Return None if the engine can have more slots, or if that is unknown.
    """
    engine, version = spec.written.engine_name, spec.written.engine_version or ""
    model = ENGINE_MODELS.get(engine, {}).get(version, {}).get(spec.model.model_type)
    if model is None:
        return None
    if not model.replicas:
        return f"its {model.architecture} has exactly one slot for each expert"
    own, precision = spec.model.quantisation, spec.phase(phase).precision
    if can_move_experts(engine, version, precision, own.other_method):
        return None
    called = own.words if own.precision == precision else precision
    return f"it has slots for replicas only of experts that it can move, and cannot move those in {called}"


def most_gpus_per_unit(spec: ResolvedSpec) -> int:
    """Return the most GPUs of any unit. SGLang's have at most one for each expert, even with redundant experts."""
    return min(MAX_EP_SIZE, spec.model.num_routed_experts) if spec.written.engine_name == "sglang" else MAX_EP_SIZE


def nearest_units(spec: ResolvedSpec, phase: Phase) -> list[tuple[int, int]]:
    """Return (EP size, redundant experts) of the nearest smaller and the nearest larger unit that can run.

    Such a unit has the same number of slots on every GPU, a supported exchange, and memory for the model and a
    request.
    """
    section, per_node, group = spec.phase(phase), spec.cluster.gpus_per_node, spec.phase(phase).attention_tp
    multiples = range(2 * group, _max_gpus(spec, phase) + 1, group)
    sizes = [size for size in multiples if size <= per_node or size % per_node == 0]
    below = [size for size in reversed(sizes) if size < section.ep_size]
    above = [size for size in sizes if size > section.ep_size]

    def is_possible(size: int, redundant: int) -> bool:
        tried = spec.with_numbers(phase, {"ep_size": size, "redundant_experts": redundant})
        return supports_unit_size(tried, phase) and fits_memory(memory_of(tried, phase))

    even = (((size, _even_redundant(spec, phase, size)) for size in side) for side in (below, above))
    possible = (
        ((size, count) for size, count in side if count is not None and is_possible(size, count)) for side in even
    )
    return [unit for side in possible for unit in islice(side, 1)]


def nearest_redundant(num_logical: int, ep_size: int, wanted: int) -> int:
    """Return the number of redundant experts nearest to `wanted` that gives all GPUs equal slots.

    The number is 0 only if `wanted` is 0.
    """
    above = wanted + -(num_logical + wanted) % ep_size
    even = [each for each in (above, above - ep_size) if each > 0 or each == wanted == 0]
    return min(even, key=lambda each: abs(each - wanted))


def _exchange(spec: ResolvedSpec, phase: Phase) -> Exchange | None:
    """Return how units of `phase` exchange expert rows.

    Return None for the bundled runtime, and for units of one attention group, which exchange no rows.
    """
    section, engine, version = spec.phase(phase), spec.written.engine_name, spec.written.engine_version
    if version is None or section.ep_size == section.attention_tp:
        return None
    return EXCHANGES[engine][version][phase]


def _max_gpus(spec: ResolvedSpec, phase: Phase) -> int:
    """Return the most GPUs that each unit of `phase` can have on the nodes that the other phases leave free."""
    nodes, per_node = spec.cluster.nodes, spec.cluster.gpus_per_node
    taken = {each: spec.written.num_units(each) * max(1, spec.phase(each).ep_size // per_node) for each in spec.phases}
    num_nodes = (nodes if isinstance(nodes, int) else len(nodes)) - len(spec.cluster.spares)
    left = num_nodes - sum(number for each, number in taken.items() if each != phase)
    return min(max(1, left // spec.written.num_units(phase)) * per_node, most_gpus_per_unit(spec))


def _engine_in_words(spec: ResolvedSpec) -> str:
    return f"{spec.written.engine_name} {spec.written.engine_version}"


def _sizes_in_words(exchange: Exchange, sizes: Sequence[int]) -> str:
    if "normal" not in exchange.kernels:
        return f"less than {NVLINK_PEERS} or a multiple of {NVLINK_PEERS}"
    return " or ".join(part for part in (", ".join(map(str, sizes[:-1])), *map(str, sizes[-1:])) if part) or "1"


def _explain_size_limit(spec: ResolvedSpec, exchange: Exchange, section: PhaseSpec) -> str:
    if "normal" not in exchange.kernels:
        return f"DeepEP's low-latency kernels take {NVLINK_PEERS} ranks for a node once there are so many"
    per_node = spec.cluster.gpus_per_node
    if section.ep_size <= per_node or (per_node % NVLINK_PEERS == 0):
        return "DeepEP's normal kernels have configurations for certain numbers of ranks only"
    return (
        f"in DeepEP's normal kernels {NVLINK_PEERS} consecutive ranks open each other's memory, which is on other "
        f"nodes where a node has {per_node} GPUs"
    )


def _offer_sizes(spec: ResolvedSpec, phase: Phase) -> Fix | str:
    """Return a fix with the nearest smaller and larger EP sizes that can run, each with redundant experts that fit."""
    now = spec.phase(phase).redundant_experts
    changes: list[Change] = [
        {HERE: size} if redundant == now else {HERE: size, f"{phase}.redundant_experts": redundant}
        for size, redundant in nearest_units(spec, phase)
    ]
    if changes:
        return Fix(f"nearest: {', or '.join(map(_change_in_words, changes))}", tuple(changes))
    if spec.cluster.gpus_per_node % NVLINK_PEERS:
        return f"plan units on nodes of {NVLINK_PEERS} GPUs"
    return "use more nodes, or GPUs with more memory"


def _even_redundant(spec: ResolvedSpec, phase: Phase, size: int) -> int | None:
    """Return the number of redundant experts nearest to the spec's that gives `size` GPUs equal slots.

    Return None if no number does.
    """
    redundant, num_logical = spec.phase(phase).redundant_experts, spec.model.num_routed_experts
    if explain_missing_replicas(spec, phase):
        return None if num_logical % size else 0
    nearest_one = nearest_redundant(num_logical, size, redundant)
    return nearest_one if nearest_one <= num_logical * (size - 1) else None


def _change_in_words(change: Change) -> str:
    size, *redundant = change.values()
    return " with redundant_experts ".join(map(str, (size, *redundant)))

"""What an engine's exchange cannot do with a unit: its number of GPUs, and the tokens of its decode steps.

The facts are in `planner/facts/exchange.py`. Fixes offer sizes that are right in every way that a spec's rules ask for,
and that memory holds.

vLLM has slots for replicas only where it moves experts (`--enable-eplb`). With experts that it cannot move it refuses
that option, and with it every replica; without replicas it runs.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from planner.facts.engine_models import ENGINE_MODELS, moves_form
from planner.facts.exchange import BUFFER_LIMIT_BYTES, EXCHANGES, MAX_DISPATCHED_TOKENS, NVLINK_PEERS, Exchange
from planner.facts.terms import Phase
from planner.layout.dispatch import dispatched_tokens
from planner.layout.memory import MemoryPlan, memory_of
from planner.layout.working_memory import low_latency_bytes
from planner.problems.finding import Finding, Unknown
from planner.problems.fix import HERE, Change, Fix, nearest
from planner.rules.rule import Candidate
from planner.spec.phase import MAX_EP_SIZE, PhaseSpec
from planner.spec.resolved import ResolvedSpec

__all__ = [
    *("exchange_sizes", "has_room", "has_slots", "is_held", "room_for_requests", "takes_unit", "units_beside"),
    "why_no_replicas",
]


def takes_unit(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine exchanges rows between as many GPUs as a unit of `phase` has, on the nodes that it has.

    The bundled runtime always does.
    """
    exchange, ep_size = _exchange(spec, phase), spec.phase(phase).ep_size
    return exchange is None or exchange.takes(ep_size, spec.cluster.gpus_per_node, spec.gpu_of(phase))


def has_room(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine's exchange can hold the tokens of a decode step."""
    exchange = _exchange(spec, phase)
    if exchange is None or "low_latency" not in exchange.kernels:
        return True
    tokens = dispatched_tokens(spec.phase(phase), spec.written.engine_name)
    return tokens <= MAX_DISPATCHED_TOKENS and _buffer_bytes(spec, phase) < BUFFER_LIMIT_BYTES


def exchange_sizes(c: Candidate) -> Iterator[Finding]:
    """Refuse a unit whose GPUs are too many, too few or too far apart for its exchange."""
    spec = c.resolved
    for phase in spec.phases:
        section, exchange = spec.phase(phase), _exchange(spec, phase)
        if exchange is None or takes_unit(spec, phase):
            continue
        per_node, gpu = spec.cluster.gpus_per_node, spec.gpu_of(phase)
        sizes = [size for size in range(2, _most_gpus(spec, phase) + 1) if exchange.takes(size, per_node, gpu)]
        rule = f"S758 must be {_in_words(exchange, sizes)} to run on {_named(spec)}"
        fix = _other_sizes(c, phase)
        yield Finding(f"{phase}.ep_size", section.ep_size, rule, _why_no_exchange(spec, exchange, section), fix)


def room_for_requests(c: Candidate) -> Iterator[Finding]:
    """Refuse decode steps of more tokens than low-latency kernels count, or than their buffer can hold."""
    spec = c.resolved
    for phase in spec.phases:
        if has_room(spec, phase):
            continue
        section, engine = spec.phase(phase), spec.written.engine_name
        requests = range(1, section.max_requests + 1)
        most = bisect_left(
            requests, True, key=lambda each: not has_room(spec.trying(phase, {"max_requests": each}), phase)
        )
        if dispatched_tokens(section, engine) > MAX_DISPATCHED_TOKENS:
            rule = f"S746 must be at most {most:,} to run on {engine}"
            reason = f"DeepEP's low-latency kernels accept at most {MAX_DISPATCHED_TOKENS:,} tokens per GPU"
            yield Finding(f"{phase}.max_requests", section.max_requests, rule, reason, nearest(most))
        else:
            yield _too_large_a_buffer(spec, phase, most)


def is_held(memory: MemoryPlan | None) -> bool:
    """Return whether a GPU's memory holds the model and a request; True where nobody knows how much there is."""
    return memory is None or memory.short <= 0


def has_slots(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine has a slot for each redundant expert of `phase`."""
    return spec.phase(phase).redundant_experts == 0 or why_no_replicas(spec, phase) is None


def why_no_replicas(spec: ResolvedSpec, phase: Phase) -> str | None:
    """Return why the spec's engine has one slot for each expert; None where it can have more, or nobody knows."""
    engine, version = spec.written.engine_name, spec.written.engine_version or ""
    model = ENGINE_MODELS.get(engine, {}).get(version, {}).get(spec.model.model_type)
    if model is None:
        return None
    if not model.replicas:
        return f"its {model.architecture} has exactly one slot for each expert"
    own, precision = spec.model.quantisation, spec.phase(phase).precision
    if moves_form(engine, version, precision, own.other_method):
        return None
    called = own.words if own.precision == precision else precision
    return f"it has slots for replicas only of experts that it can move, and cannot move those in {called}"


def units_beside(spec: ResolvedSpec, phase: Phase) -> list[tuple[int, int]]:
    """Return EP size and redundant experts of the nearest smaller and the nearest larger unit that can be.

    All of its GPUs hold as many slots, its engine exchanges their rows, and its memory holds the model and a request.
    """
    section, per_node, group = spec.phase(phase), spec.cluster.gpus_per_node, spec.phase(phase).attention_tp
    multiples = range(2 * group, _most_gpus(spec, phase) + 1, group)
    sizes = [size for size in multiples if size <= per_node or size % per_node == 0]
    below = [size for size in reversed(sizes) if size < section.ep_size]
    above = [size for size in sizes if size > section.ep_size]

    def is_possible(size: int, redundant: int) -> bool:
        tried = spec.trying(phase, {"ep_size": size, "redundant_experts": redundant})
        has_buffer = has_room(tried, phase) or not has_room(spec, phase)
        return takes_unit(tried, phase) and has_buffer and is_held(memory_of(tried, phase))

    even = (((size, _even_redundant(spec, phase, size)) for size in side) for side in (below, above))
    possible = (
        ((size, count) for size, count in side if count is not None and is_possible(size, count)) for side in even
    )
    return [unit for side in possible for unit in islice(side, 1)]


def _exchange(spec: ResolvedSpec, phase: Phase) -> Exchange | None:
    """Return what exchanges the rows of `phase`; None where a unit is one attention group, which exchanges none."""
    section, engine, version = spec.phase(phase), spec.written.engine_name, spec.written.engine_version
    if version is None or section.ep_size == section.attention_tp:
        return None
    return EXCHANGES[engine][version][phase]


def _most_gpus(spec: ResolvedSpec, phase: Phase) -> int:
    """Return the GPUs that the nodes without the other phases' units have for each unit of `phase`."""
    nodes, per_node = spec.cluster.nodes, spec.cluster.gpus_per_node
    taken = {each: spec.written.num_units(each) * max(1, spec.phase(each).ep_size // per_node) for each in spec.phases}
    num_nodes = (nodes if isinstance(nodes, int) else len(nodes)) - len(spec.cluster.spares)
    left = num_nodes - sum(number for each, number in taken.items() if each != phase)
    return min(max(1, left // spec.written.num_units(phase)) * per_node, MAX_EP_SIZE)


def _named(spec: ResolvedSpec) -> str:
    return f"{spec.written.engine_name} {spec.written.engine_version}"


def _in_words(exchange: Exchange, sizes: Sequence[int]) -> str:
    if "normal" not in exchange.kernels:
        return f"less than {NVLINK_PEERS} or a multiple of {NVLINK_PEERS}"
    return " or ".join(part for part in (", ".join(map(str, sizes[:-1])), *map(str, sizes[-1:])) if part) or "1"


def _why_no_exchange(spec: ResolvedSpec, exchange: Exchange, section: PhaseSpec) -> str:
    if "normal" not in exchange.kernels:
        return f"DeepEP's low-latency kernels take {NVLINK_PEERS} ranks for a node once there are so many"
    per_node = spec.cluster.gpus_per_node
    if section.ep_size <= per_node or (per_node % NVLINK_PEERS == 0):
        return "DeepEP's normal kernels have configurations for certain numbers of ranks only"
    return (
        f"in DeepEP's normal kernels {NVLINK_PEERS} consecutive ranks open each other's memory, which is on other "
        f"nodes where a node has {per_node} GPUs"
    )


def _other_sizes(c: Candidate, phase: Phase) -> Fix | str:
    """Offer the nearest sizes on both sides, with the redundant experts that fill their slots evenly."""
    spec = c.resolved
    now = spec.phase(phase).redundant_experts
    changes: list[Change] = [
        {HERE: size} if redundant == now else {HERE: size, f"{phase}.redundant_experts": redundant}
        for size, redundant in units_beside(spec, phase)
    ]
    if changes:
        return Fix(f"nearest: {', or '.join(map(_said, changes))}", tuple(changes))
    if spec.cluster.gpus_per_node % NVLINK_PEERS:
        return _on_whole_eights(c, phase)
    return "use more nodes, or GPUs with more memory"


def _on_whole_eights(c: Candidate, phase: Phase) -> str:
    """Say which units run on nodes of eight GPUs. What nodes have is the user's to say, so these are words alone."""
    spec = c.resolved
    per_node: Change = {"cluster.gpus_per_node": NVLINK_PEERS}
    section, has_eights = spec.phase(phase), spec.gpu_of(phase).node_gpus in (None, NVLINK_PEERS)
    cluster = spec.cluster.model_copy(update={"gpus_per_node": NVLINK_PEERS})
    on_eights = replace(spec, written=spec.written.model_copy(update={"cluster": cluster}))
    units = sorted(units_beside(on_eights, phase), key=lambda unit: abs(unit[0] - section.ep_size))
    for size, redundant in [(section.ep_size, section.redundant_experts), *units]:
        change = {**per_node, f"{phase}.ep_size": size, f"{phase}.redundant_experts": redundant}
        if has_eights and _can_be(c.having(change), phase):
            sizes = "" if size == section.ep_size else f", with ep_size {size} and redundant_experts {redundant}"
            return f"write cluster.gpus_per_node: {NVLINK_PEERS} where each node has {NVLINK_PEERS} GPUs{sizes}"
    return f"plan units on nodes of {NVLINK_PEERS} GPUs"


def _can_be(c: Candidate, phase: Phase) -> bool:
    try:
        tried = c.resolved
    except Unknown:
        return False
    return takes_unit(tried, phase) and has_room(tried, phase) and is_held(memory_of(tried, phase))


def _even_redundant(spec: ResolvedSpec, phase: Phase, size: int) -> int | None:
    """Return the nearest redundant experts that give each of `size` GPUs as many slots; None where there are none."""
    redundant, num_logical = spec.phase(phase).redundant_experts, spec.model.num_routed_experts
    if why_no_replicas(spec, phase):
        return None if num_logical % size else 0
    above = redundant + -(num_logical + redundant) % size
    even = [each for each in (above - size, above) if each > 0 or each == redundant == 0]
    nearest_one = min(even or [above], key=lambda each: abs(each - redundant))
    return nearest_one if nearest_one <= num_logical * (size - 1) else None


def _said(change: Change) -> str:
    size, *redundant = change.values()
    return " with redundant_experts ".join(map(str, (size, *redundant)))


def _buffer_bytes(spec: ResolvedSpec, phase: Phase) -> int:
    section = spec.phase(phase)
    num_physical = spec.model.num_routed_experts + section.redundant_experts
    return low_latency_bytes(spec.model.hidden_size, num_physical, dispatched_tokens(section, spec.written.engine_name))


def _too_large_a_buffer(spec: ResolvedSpec, phase: Phase, most: int) -> Finding:
    section = spec.phase(phase)
    num_physical = spec.model.num_routed_experts + section.redundant_experts
    rule = f"S746 must be at most {most:,} with {num_physical:,} physical experts to run on {_named(spec)}"
    tokens, size = dispatched_tokens(section, spec.written.engine_name), _buffer_bytes(spec, phase) / 2**30
    reason = (
        f"DeepEP's low-latency buffer must be below 32 GiB, and has {size:.1f} GiB for {num_physical:,} experts and "
        f"{tokens:,} tokens of {spec.model.hidden_size:,} channels"
    )
    fix = nearest(most)
    for redundant in range(section.redundant_experts - section.ep_size, -1, -section.ep_size):
        if has_room(spec.trying(phase, {"redundant_experts": redundant}), phase):
            fewer: Change = {f"{phase}.redundant_experts": redundant}
            fix = Fix(f"{fix}, or redundant_experts {redundant}", (*fix.changes, fewer))
            break
    return Finding(f"{phase}.max_requests", section.max_requests, rule, reason, fix)

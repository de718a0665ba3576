"""What may be given up in a spec that cannot be had, in the order of what it costs: the one place that says so.

A relaxation is a generator: for a spec it yields series of changes. A series is one field, or some that go together,
from the change that gives up least on. `repair.py` offers the first change of each series that makes the spec feasible,
and offers nothing that it has not tried. So a relaxation may propose what breaks rules or does not help.

What people own comes last: first limits and precision, then units on the nodes that there are, then more nodes, and
other GPUs only where nothing else would do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from math import ceil

from planner.facts.catalog import GPUS
from planner.facts.engines import OURS
from planner.facts.terms import EngineName, Phase
from planner.layout.layout import lay_out
from planner.problems.fix import Change
from planner.search.series import Numbers, Series, joined
from planner.search.unit_sizes import (
    covering_sizes,
    lacking_nodes,
    larger_sizes,
    larger_sizes_and_nodes,
    merged_units,
    num_usable,
    smaller_sizes,
)
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec

__all__ = ["AT_THE_PEAK", "ORDERS", "POINTS", "Order", "Relaxation"]

LEAST_OF_TOKENS = 8  # assumed: requests and steps of less than an eighth of their tokens are no way out
MAX_COVERING = 24  # sizes of units, beyond which coverage costs more than what else may be given up: assumed
STEP_TOKENS: int = PhaseSpec.model_fields["max_batch_tokens"].default  # nobody needs longer ones

LIMITS: dict[Phase, tuple[str, ...]] = {  # that memory grows with
    "prefill": ("max_batch_tokens",),
    "decode": ("max_requests",),
    "mixed": ("max_batch_tokens", "max_requests"),
}

POINTS = {"max_batch_tokens": "step_tokens", "max_requests": "requests"}  # limit -> what a point asks of it

SHARING_ENGINE: EngineName = "sglang"  # shares attention between GPUs of a node, for as many models as any


Relaxation = Callable[[ResolvedSpec], Iterator[Series]]
Order = Sequence[Sequence[Relaxation]]


def covering_slots(spec: ResolvedSpec) -> Iterator[Series]:
    """The slots that coverage asks for, in the units as they are, then in units that are a little larger."""
    if spec.written.coverage != "none":
        yield islice(covering_sizes(spec), MAX_COVERING)


def less_coverage(spec: ResolvedSpec) -> Iterator[Series]:
    """Experts that survive the loss of a node only, or of nothing."""
    if spec.written.coverage != "none":
        yield [{"coverage": less} for less in ("node", "none") if less != spec.written.coverage]


def published_precision(spec: ResolvedSpec) -> Iterator[Series]:
    """The precision of the model's own checkpoint, in the phases that need more memory in theirs."""
    yield _published(spec)


def smaller_limits(spec: ResolvedSpec) -> Iterator[Series]:
    """Fewer redundant experts, a slot a GPU at a time; shorter steps and fewer requests; then shorter requests."""
    for phase in spec.phases:
        section = spec.phase(phase)
        fewer = range(section.redundant_experts - section.ep_size, -1, -section.ep_size)
        yield ({f"{phase}.redundant_experts": redundant} for redundant in fewer)
        for limit in LIMITS[phase]:
            yield _below(spec, [phase], limit, _asked_at_its_point(spec, phase, limit))
    yield _below(spec, spec.phases, "max_request_tokens")


def shared_attention(spec: ResolvedSpec) -> Iterator[Series]:
    """More GPUs of a node to a request's attention: each then has fewer heads, and their part of the weights."""
    if spec.written.engine_name != OURS:
        yield from _attention_sizes(spec)


def published_limits(spec: ResolvedSpec) -> Iterator[Series]:
    """Limits that do in the precision of the model's own checkpoint, where neither does alone."""
    relaxations = (covering_slots, less_coverage, smaller_limits, shared_attention)
    limits = [series for relaxation in relaxations for series in relaxation(spec)]
    for published, series in product(_published(spec), limits):
        yield joined(published, series)


def other_engine(spec: ResolvedSpec) -> Iterator[Series]:
    """Attention that GPUs share, with an engine that can run it, as ours cannot."""
    if spec.written.engine_name == OURS:
        yield from ([{"engine": SHARING_ENGINE, **each} for each in series] for series in _attention_sizes(spec))


def larger_units(spec: ResolvedSpec) -> Iterator[Series]:
    """Larger units on the nodes that there are."""
    for phase in spec.phases:
        yield ({f"{phase}.ep_size": size} for size in larger_sizes(spec, phase))


def larger_units_and_nodes(spec: ResolvedSpec) -> Iterator[Series]:
    """Larger units and the nodes that they take, in one phase, else in all."""
    yield larger_sizes_and_nodes(spec)


def larger_gpus(spec: ResolvedSpec) -> Iterator[Series]:
    """The smallest GPU of the catalog that does, unless nodes are listed with theirs: those are what there is."""
    memory, nodes = spec.gpu.usable_bytes, spec.cluster.nodes
    if memory is not None and (isinstance(nodes, int) or not any(node.gpu for node in nodes)):
        larger = sorted((gpu.usable_bytes, name) for name, gpu in GPUS.items() if (gpu.usable_bytes or 0) > memory)
        yield [{"cluster.gpu": name} for _, name in larger]


def fewer_always_on(spec: ResolvedSpec) -> Iterator[Series]:
    """Fewer units that are always on: as many as the nodes hold beside those of the other phases."""
    assert spec.written.schedule is not None
    floors, layouts = spec.written.schedule.min_units, [lay_out(spec, phase) for phase in spec.phases]
    missing = sum(each.num_units * each.nodes_per_unit for each in layouts) - num_usable(spec)
    for each in layouts:
        most = each.num_units - ceil(missing / each.nodes_per_unit)
        if 0 < most < floors.of(each.phase):
            yield [{f"schedule.min_units.{each.phase}": most}]


def whole_nodes_or_more(spec: ResolvedSpec) -> Iterator[Series]:
    """Units of whole nodes, where parts of nodes have GPUs enough for them; else the nodes that units lack."""
    lacking = lacking_nodes(spec)
    yield [*merged_units(spec), *([lacking] if lacking else [])]


def one_unit(spec: ResolvedSpec) -> Iterator[Series]:
    """A unit that does both, for a single node that two units cannot share."""
    cluster, written = spec.cluster, spec.document.data
    sizes = {spec.phase(phase).ep_size for phase in spec.phases}
    if num_usable(spec) == 1 and len(spec.phases) == 2 and len(sizes) == 1 and max(sizes) <= cluster.gpus_per_node:
        both = {**written["prefill"], **written["decode"]}
        both |= {key: written["prefill"][key] for key in ("max_batch_tokens",) if key in written["prefill"]}
        mixed = {key: value for key, value in both.items() if key != "units"}
        yield [{"mixed": mixed, "prefill": None, "decode": None}]


def uncordoned_nodes(spec: ResolvedSpec) -> Iterator[Series]:
    """Listed nodes that take pods again, from the first, as few as will do."""
    nodes = spec.cluster.nodes
    cordoned = [] if isinstance(nodes, int) else [index for index, node in enumerate(nodes) if node.cordoned]
    yield [{f"cluster.nodes.{i}.cordoned": False for i in cordoned[: each + 1]} for each in range(len(cordoned))]


def gpus_of_other_nodes(spec: ResolvedSpec) -> Iterator[Series]:
    """A phase on the listed nodes that have other GPUs."""
    nodes = spec.cluster.nodes
    if not isinstance(nodes, int) and spec.gpu.usable_bytes is not None:
        gpus = dict.fromkeys(node.gpu for node in nodes if node.gpu in GPUS)
        pairs = product(gpus, reversed(spec.phases))
        yield [{f"{phase}.gpu": gpu} for gpu, phase in pairs if gpu != spec.written.gpu_name(phase)]


def fewer_spares(spec: ResolvedSpec) -> Iterator[Series]:
    """The first of the spares, as many as units leave."""
    spares = spec.cluster.spares
    yield [{"cluster.spares": spares[:number]} for number in range(len(spares) - 1, -1, -1)]


def fewer_units(spec: ResolvedSpec) -> Iterator[Series]:
    """Fewer units of a phase, where no schedule counts them."""
    for phase in spec.phases if spec.written.schedule is None else ():
        yield _below(spec, [phase], "units")


def smaller_units(spec: ResolvedSpec) -> Iterator[Series]:
    """Smaller units that keep some of their redundant experts; else those with the fewest."""
    yield chain(smaller_sizes(spec), smaller_sizes(spec, fewest_slots=True))


# From what costs least. What stands in a row costs alike: a change of each of its series is offered.
OF_MEMORY: Order = (
    (covering_slots, less_coverage, published_precision, smaller_limits, shared_attention),
    (published_limits,),
    (other_engine,),
    (larger_units,),
    (larger_units_and_nodes,),
    (larger_gpus,),
)
OF_NODES: Order = (
    (
        *(whole_nodes_or_more, one_unit, uncordoned_nodes, gpus_of_other_nodes, fewer_spares, fewer_units),
        *(smaller_units, larger_units),  # larger ones do not share a node's GPUs, which may be what is lacking
    ),
    (larger_gpus,),
)
AT_THE_PEAK: Order = ((fewer_always_on, whole_nodes_or_more, uncordoned_nodes, fewer_spares),)

# What is tried where a rule refuses a spec. The other rules know themselves what would do.
ORDERS: Mapping[str, Order] = {"S701": OF_NODES, "S707": OF_MEMORY, "S720": OF_MEMORY, "S721": OF_MEMORY}


def _published(spec: ResolvedSpec) -> list[Change]:
    phases = [phase for phase in spec.phases if spec.phase(phase).precision == "bf16"]
    is_other = phases and spec.model.weights_in != "bf16"
    return [{f"{phase}.precision": spec.model.weights_in for phase in phases}] if is_other else []


def _attention_sizes(spec: ResolvedSpec) -> Iterator[list[Change]]:
    for phase in spec.phases:
        section = spec.phase(phase)
        on_node = min(section.ep_size, spec.cluster.gpus_per_node)
        sizes = range(section.attention_tp + 1, on_node + 1)
        yield [{f"{phase}.attention_tp": size} for size in sizes if on_node % size == 0]


def _below(spec: ResolvedSpec, phases: Sequence[Phase], name: str, asked: int = 1) -> Numbers:
    """Return the numbers below that of the first of `phases`, down to what is `asked` for."""
    value: int = getattr(spec.phase(phases[0]), name)
    usual = min(value, STEP_TOKENS) if name == "max_batch_tokens" else value
    least = max(usual // LEAST_OF_TOKENS, 2) if name.endswith("_tokens") else 1
    return Numbers(tuple(f"{phase}.{name}" for phase in phases), range(value - 1, max(asked, least) - 1, -1))


def _asked_at_its_point(spec: ResolvedSpec, phase: Phase, limit: str) -> int:
    """Return what the operating point that is written asks of a limit: with less of it no spec is right."""
    asked = getattr(getattr(spec.written.operating_point, phase), POINTS[limit], None)
    return asked if isinstance(asked, int) else 1

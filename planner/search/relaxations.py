"""List the changes that may make an infeasible spec feasible, cheapest first. No other module decides this order.

A relaxation is a generator that yields series of changes for a spec. A series changes one field, or several together,
and begins with the change that gives up least. `repair.py` tries the changes and offers the first of each series that
makes the spec feasible. So a relaxation may propose changes that break rules or do not help.

Hardware changes last: first limits and precision, then units on the same nodes, then more nodes, and other GPUs only
if nothing else helps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from math import ceil

from planner.facts.catalog import GPUS
from planner.facts.engines import OURS
from planner.facts.terms import EngineName, Phase
from planner.layout.layout import lay_out
from planner.problems.fix import Change
from planner.search.series import NumberSeries, Series, join_change
from planner.search.unit_sizes import (
    covering_sizes,
    larger_sizes,
    larger_sizes_and_nodes,
    merged_units,
    node_increase,
    num_usable,
    smaller_sizes,
)
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec

LEAST_OF_TOKENS = 8  # assumed: nobody accepts requests or steps cut to less than an eighth of their tokens
MAX_COVERING = 24  # changes to try; assumed: later ones, with larger units, cost more than giving up coverage
STEP_TOKENS: int = PhaseSpec.model_fields["max_batch_tokens"].default  # nobody needs longer steps

LIMITS: dict[Phase, tuple[str, ...]] = {  # limits whose higher values take more memory
    "prefill": ("max_batch_tokens",),
    "decode": ("max_requests",),
    "mixed": ("max_batch_tokens", "max_requests"),
}

POINT_FIELDS = {
    "max_batch_tokens": "step_tokens",
    "max_requests": "requests",
}  # limit -> the operating point's field that must not exceed it

SHARING_ENGINE: EngineName = "sglang"  # shares attention between a node's GPUs, for more models than others


Relaxation = Callable[[ResolvedSpec], Iterator[Series]]
Order = Sequence[Sequence[Relaxation]]


def covering_slots(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to numbers of expert slots that satisfy `coverage`, at present EP sizes, then at larger ones."""
    if spec.written.coverage != "none":
        yield islice(covering_sizes(spec), MAX_COVERING)


def less_coverage(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to weaker `coverage`: from rack to node, then to none."""
    if spec.written.coverage != "none":
        yield [{"coverage": less} for less in ("node", "none") if less != spec.written.coverage]


def published_precision(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield the change of all phases in bf16 to the checkpoint's own precision, if the checkpoint is quantised."""
    yield _published_precisions(spec)


def smaller_limits(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to fewer redundant experts (one slot per GPU at a time), shorter steps, and fewer requests.

    Changes to shorter requests come last.
    """
    for phase in spec.phases:
        section = spec.phase(phase)
        fewer = range(section.redundant_experts - section.ep_size, -1, -section.ep_size)
        yield ({f"{phase}.redundant_experts": redundant} for redundant in fewer)
        for limit in LIMITS[phase]:
            yield _smaller_values(spec, [phase], limit, _least_for_point(spec, phase, limit))
    yield _smaller_values(spec, spec.phases, "max_request_tokens")


def shared_attention(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to larger `attention_tp`: each GPU then holds fewer heads and less of the attention weights."""
    if spec.written.engine_name != OURS:
        yield from _attention_sizes(spec)


def published_limits(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to the checkpoint's precision together with another change, such as a smaller limit.

    Neither of the two may help alone.
    """
    relaxations = (covering_slots, less_coverage, smaller_limits, shared_attention)
    limits = [series for relaxation in relaxations for series in relaxation(spec)]
    for published, series in product(_published_precisions(spec), limits):
        yield join_change(published, series)


def other_engine(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes from the bundled runtime, which cannot share attention, to an engine with larger `attention_tp`."""
    if spec.written.engine_name == OURS:
        yield from ([{"engine": SHARING_ENGINE, **each} for each in series] for series in _attention_sizes(spec))


def larger_units(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to larger EP sizes on the same nodes, phase by phase."""
    for phase in spec.phases:
        yield ({f"{phase}.ep_size": size} for size in larger_sizes(spec, phase))


def larger_units_and_nodes(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to larger EP sizes with the nodes that these need: in one phase first, then in all phases."""
    yield larger_sizes_and_nodes(spec)


def larger_gpus(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes of `cluster.gpu` to catalog GPUs with more memory, smallest first.

    Yield nothing if the cluster's listed nodes name GPUs.
    """
    memory, nodes = spec.gpu.usable_bytes, spec.cluster.nodes
    if memory is not None and (isinstance(nodes, int) or not any(node.gpu for node in nodes)):
        larger = sorted((gpu.usable_bytes, name) for name, gpu in GPUS.items() if (gpu.usable_bytes or 0) > memory)
        yield [{"cluster.gpu": name} for _, name in larger]


def lower_unit_floor(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield a smaller `schedule.min_units` for each phase where that makes all units fit on the nodes."""
    assert spec.written.schedule is not None
    floors, layouts = spec.written.schedule.min_units, [lay_out(spec, phase) for phase in spec.phases]
    missing = sum(each.num_units * each.nodes_per_unit for each in layouts) - num_usable(spec)
    for each in layouts:
        most = each.num_units - ceil(missing / each.nodes_per_unit)
        if 0 < most < floors.of(each.phase):
            yield [{f"schedule.min_units.{each.phase}": most}]


def whole_node_units(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes from several units on a node to one that fills it, then a change to more nodes."""
    lacking = node_increase(spec)
    yield [*merged_units(spec), *([lacking] if lacking else [])]


def single_mixed_unit(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield the change from prefill and decode to one mixed unit, if the cluster has only one node."""
    cluster, written = spec.cluster, spec.document.data
    sizes = {spec.phase(phase).ep_size for phase in spec.phases}
    if num_usable(spec) == 1 and len(spec.phases) == 2 and len(sizes) == 1 and max(sizes) <= cluster.gpus_per_node:
        both = {**written["prefill"], **written["decode"]}
        both |= {key: written["prefill"][key] for key in ("max_batch_tokens",) if key in written["prefill"]}
        mixed = {key: value for key, value in both.items() if key != "units"}
        yield [{"mixed": mixed, "prefill": None, "decode": None}]


def uncordoned_nodes(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes that uncordon the first cordoned node, the first two, and so on."""
    nodes = spec.cluster.nodes
    cordoned = [] if isinstance(nodes, int) else [index for index, node in enumerate(nodes) if node.cordoned]
    yield [{f"cluster.nodes.{i}.cordoned": False for i in cordoned[: each + 1]} for each in range(len(cordoned))]


def other_listed_gpus(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes of one phase to another GPU type that the listed nodes have."""
    nodes = spec.cluster.nodes
    if not isinstance(nodes, int) and spec.gpu.usable_bytes is not None:
        gpus = dict.fromkeys(node.gpu for node in nodes if node.gpu in GPUS)
        pairs = product(gpus, reversed(spec.phases))
        yield [{f"{phase}.gpu": gpu} for gpu, phase in pairs if gpu != spec.written.gpu_name(phase)]


def fewer_spares(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to shorter lists of spares: without the last spare, without the last two, and so on."""
    spares = spec.cluster.spares
    yield [{"cluster.spares": spares[:number]} for number in range(len(spares) - 1, -1, -1)]


def fewer_units(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield changes to fewer units of a phase, unless a schedule sets their number."""
    for phase in spec.phases if spec.written.schedule is None else ():
        yield _smaller_values(spec, [phase], "units")


def smaller_units(spec: ResolvedSpec) -> Iterator[Series]:
    """Yield one series of changes to smaller units.

    It has those with about the present number of redundant experts, then those with the fewest.
    """
    yield chain(smaller_sizes(spec), smaller_sizes(spec, fewest_slots=True))


# Cheapest row first. The relaxations of a row cost users about the same, so each of them may offer a change.
MEMORY_ORDER: Order = (
    (covering_slots, less_coverage, published_precision, smaller_limits, shared_attention),
    (published_limits,),
    (other_engine,),
    (larger_units,),
    (larger_units_and_nodes,),
    (larger_gpus,),
)
NODE_ORDER: Order = (
    (
        *(whole_node_units, single_mixed_unit, uncordoned_nodes, other_listed_gpus, fewer_spares, fewer_units),
        *(smaller_units, larger_units),  # a unit of whole nodes needs no free GPUs on a shared node
    ),
    (larger_gpus,),
)
PEAK_ORDER: Order = ((lower_unit_floor, whole_node_units, uncordoned_nodes, fewer_spares),)

# What to try, by the rule that refuses the spec. Every other rule offers its own fix.
ORDERS: Mapping[str, Order] = {"S701": NODE_ORDER, "S707": MEMORY_ORDER, "S720": MEMORY_ORDER, "S721": MEMORY_ORDER}


def _published_precisions(spec: ResolvedSpec) -> list[Change]:
    phases = [phase for phase in spec.phases if spec.phase(phase).precision == "bf16"]
    is_other = phases and spec.model.weights_in != "bf16"
    return [{f"{phase}.precision": spec.model.weights_in for phase in phases}] if is_other else []


def _attention_sizes(spec: ResolvedSpec) -> Iterator[list[Change]]:
    for phase in spec.phases:
        section = spec.phase(phase)
        on_node = min(section.ep_size, spec.cluster.gpus_per_node)
        sizes = range(section.attention_tp + 1, on_node + 1)
        yield [{f"{phase}.attention_tp": size} for size in sizes if on_node % size == 0]


def _smaller_values(spec: ResolvedSpec, phases: Sequence[Phase], name: str, asked: int = 1) -> NumberSeries:
    """Return the changes that write smaller values of field `name`, the same in all `phases`, down to `asked`."""
    value: int = getattr(spec.phase(phases[0]), name)
    usual = min(value, STEP_TOKENS) if name == "max_batch_tokens" else value
    least = max(usual // LEAST_OF_TOKENS, 2) if name.endswith("_tokens") else 1
    return NumberSeries(tuple(f"{phase}.{name}" for phase in phases), range(value - 1, max(asked, least) - 1, -1))


def _least_for_point(spec: ResolvedSpec, phase: Phase, limit: str) -> int:
    """Return how low the field `limit` may go before the written operating point exceeds it; 1 without a point."""
    asked = getattr(getattr(spec.written.operating_point, phase), POINT_FIELDS[limit], None)
    return asked if isinstance(asked, int) else 1

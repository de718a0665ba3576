"""The smallest changes that would make an infeasible spec feasible, each tried before it is printed.

A pass that finds a spec infeasible knows what binds, but not whether a way out is one: more GPUs a unit may need more
nodes than there are. So changes are proposed here, field by field, and a change is printed only when the spec with it
has been checked and planned anew. At most three are, of different fields.

Changes are tried from what costs least. What people own comes last: first limits and precision, then units on the nodes
that there are, then more nodes, and other GPUs only where nothing else would do. Where memory is short, a change must
also leave KV for the requests that the spec asks for. All of them at full length are tried first, then the share of
that which requests usually hold; only the latter where the requests themselves are too many. A change that leaves room
for one request alone is printed only when there is no other.

It changes no spec: the user does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from planner.engines.limits import runs_layout
from planner.facts.catalog import GPUS
from planner.facts.engines import OURS
from planner.facts.terms import EngineName, Phase
from planner.layout.memory import USUAL_SHARE, MemoryOf
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.fix import Change, applied
from planner.search.fewer_nodes import merged_units, num_usable, smaller_units
from planner.search.in_words import fix_of
from planner.search.larger_units import (
    MAX_TRIES,
    covering_slots,
    lacking_nodes,
    larger_phase,
    larger_phases,
    larger_units,
)
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.phase import PhaseSpec
from planner.spec.undecided import AUTO

__all__ = ["with_changes"]

FULL_SHARE, ONE_REQUEST = 1.0, 0.0  # of the KV that all requests of full length would take
LEAST_OF_TOKENS = 8  # assumed: requests and steps of less than an eighth of their tokens are no way out
STEP_TOKENS: int = PhaseSpec.model_fields["max_batch_tokens"].default  # nobody needs longer ones

LIMITS: dict[Phase, tuple[str, ...]] = {  # that memory grows with
    "prefill": ("max_batch_tokens",),
    "decode": ("max_requests",),
    "mixed": ("max_batch_tokens", "max_requests"),
}

POINTS = {"max_batch_tokens": "step_tokens", "max_requests": "requests"}  # limit -> what a point asks of it

SHARING_ENGINE: EngineName = "sglang"  # shares attention between GPUs of a node, for as many models as any

MAX_CHANGES = 3

Feasible = Callable[[ResolvedSpec], bool]
Works = Callable[[Change], bool]
Stage = Callable[[ResolvedSpec, Works], Iterator[Change]]


def with_changes(
    error: InfeasibleError, spec: ResolvedSpec, is_feasible: Feasible, memory_of: MemoryOf
) -> InfeasibleError:
    """`error` with up to three changes of `spec` for which `is_feasible`: each would mend all of its findings."""
    spec = _with_points_of_auto(spec)
    is_of_traffic = _needs_nodes(error) and spec.has_windows_of_traffic  # which would count other units anew
    spec = spec if is_of_traffic else _with_one_unit_of_auto(spec)
    short = tuple(phase for phase in spec.phases if (plan := memory_of(spec, phase)) and plan.short > 0)

    def holding(share: float) -> Works:
        def works(change: Change) -> bool:
            tried = _changed(spec, change, short)
            return tried is not None and is_feasible(tried) and _holds(tried, short, share, memory_of)

        return works

    def fitting(phase: Phase, share: float) -> Works:
        def works(change: Change) -> bool:
            tried = _changed(spec, change, (phase,))
            plan = memory_of(tried, phase) if tried else None
            return bool(tried and plan and plan.short <= 0 and _holds(tried, (phase,), share, memory_of))

        return works

    stages = [(_nodes_at_the_peak, ONE_REQUEST)] if is_of_traffic else _stages(error, bool(short))
    for stage, share in stages:
        changes = tuple(islice(_without_repeats(stage(spec, holding(share)), spec), MAX_CHANGES))
        if not changes and len(short) > 1:
            changes = tuple(_together(stage, spec, [fitting(phase, share) for phase in short], holding(share)))
        if changes:
            return InfeasibleError([replace(finding, fix=fix_of(changes, spec)) for finding in error.findings])
    return error


def _changed(spec: ResolvedSpec, change: Change, mended: Sequence[Phase]) -> ResolvedSpec | None:
    """Return the spec with `change`; None where that breaks rules, or has sizes that its engine cannot run.

    A phase that the engine cannot run as it is written may stay so, unless it is among the `mended`.
    """
    try:
        tried = with_values(spec, change)
    except SpecError:
        return None
    may_stay = [phase for phase in spec.phases if phase not in mended and not runs_layout(spec, phase)]
    return tried if all(phase in may_stay or runs_layout(tried, phase) for phase in tried.phases) else None


def _needs_nodes(error: InfeasibleError) -> bool:
    return any(finding.rule.startswith("S701") for finding in error.findings)


def _with_points_of_auto(spec: ResolvedSpec) -> ResolvedSpec:
    """Return `spec` with `auto` again where the planner decided what a point asks of a limit: it follows the limit."""
    paths = {f"operating_point.{phase}.{asked}" for phase in spec.phases for asked in POINTS.values()}
    decided = paths & spec.document.autos
    return with_values(spec, dict.fromkeys(decided, AUTO)) if decided else spec


def _with_one_unit_of_auto(spec: ResolvedSpec) -> ResolvedSpec:
    """Return `spec` with one unit of each phase whose units the planner decided: of larger units there are fewer."""
    if spec.has_windows_of_traffic:
        return with_values(spec, {"schedule": None} | {f"{phase}.units": 1 for phase in spec.phases})
    autos = spec.document.autos
    values = {path: 1 for phase in spec.phases if (path := f"{phase}.units") in autos and spec.phase(phase).units > 1}
    return with_values(spec, values) if values else spec


def _together(stage: Stage, spec: ResolvedSpec, fitting: Sequence[Works], works: Works) -> Iterator[Change]:
    """One change for each phase that is short, joined, where none alone is enough for all of them."""
    changes: dict[str, Any] = {}
    for fits in fitting:
        first = next(stage(spec, fits), None)
        if first is None:
            return
        changes |= first
    if works(changes):
        yield changes


def _stages(error: InfeasibleError, is_short: bool) -> Iterator[tuple[Stage, float]]:
    """What to try, and the share of the asked KV that it has to leave, in order; what works first is printed."""
    on_these_gpus: list[Stage] = [_other_limits, _published_limits, _other_engine, _other_units, _larger_system]
    if _needs_nodes(error):
        on_these_gpus = [_fewer_or_more_nodes]
    shares = [FULL_SHARE, USUAL_SHARE] if is_short else [ONE_REQUEST]
    if any(finding.path.endswith(".max_requests") for finding in error.findings):
        shares = [USUAL_SHARE]  # who asks for so many requests means usual ones: W101 offers as many
    yield from product(on_these_gpus, shares)
    yield from product([_larger_gpus], shares)
    if is_short:
        yield from product([*on_these_gpus, _larger_gpus], [ONE_REQUEST])


def _holds(spec: ResolvedSpec, phases: Sequence[Phase], share: float, memory_of: MemoryOf) -> bool:
    """Whether each of `phases` has KV for that share of its requests at full length; prefill computes one at a time."""
    if not phases:
        return True
    for phase in spec.phases:
        section = spec.phase(phase)
        asked = section.max_request_tokens * (1 if phase == "prefill" else section.max_requests)
        asked = min(asked, section.max_kv_tokens or asked)
        plan = memory_of(spec, phase) if phase in (*phases, "mixed") else None
        if plan and plan.kv_tokens < share * asked:
            return False
    return True


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


def _other_limits(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """Yield the smallest sufficient change of each field that moves no GPU; what costs nothing comes first."""
    if spec.written.coverage != "none":
        yield from _first(covering_slots(spec), works)
        yield from _first(({"coverage": less} for less in ("node", "none") if less != spec.written.coverage), works)
    yield from _first(_as_published(spec), works)
    for phase in spec.phases:
        yield from _first(_fewer_slots(spec, phase), works)
        for field in LIMITS[phase]:
            asked = _asked_at_its_point(spec, phase, field)
            yield from _most([f"{phase}.{field}"], getattr(spec.phase(phase), field), works, asked)
    yield from _most([f"{phase}.max_request_tokens" for phase in spec.phases], _request_tokens(spec), works)
    for phase in spec.phases if spec.written.engine_name != OURS else ():
        yield from _first(_shared_attention(spec, phase), works)


def _published_limits(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """Limits that do in the precision of the model's own checkpoint, where neither does alone."""
    for published in _as_published(spec):
        yield from ({**published, **change} for change in _other_limits(spec, _works_beside(published, works)))


def _works_beside(other: Change, works: Works) -> Works:
    """Whether a change works together with the `other` one."""
    return lambda change: works({**other, **change})


def _other_engine(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """Attention that GPUs share, with an engine that can run it, as ours cannot."""
    for phase in spec.phases if spec.written.engine_name == OURS else ():
        sharing = ({"engine": SHARING_ENGINE, **change} for change in _shared_attention(spec, phase))
        yield from _first(sharing, works)


def _other_units(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """Larger units on the nodes that there are."""
    for phase in spec.phases:
        yield from _first(larger_units(spec, phase), works)


def _larger_system(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """Larger units and the nodes that they take: in one phase, else in all."""
    in_one = tuple(_first(larger_phase(spec), works))
    yield from in_one or _first(larger_phases(spec), works)


def _fewer_or_more_nodes(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """Units of whole nodes where parts of them have GPUs enough; else the nodes that units lack, or other units."""
    merged = tuple(_first(merged_units(spec), works))
    yield from merged or _first(_more_nodes(spec), works)
    yield from _first(_one_unit(spec), works)
    yield from _first(_uncordoned(spec), works)
    yield from _first(_other_gpus(spec), works)
    yield from _first(_fewer_spares(spec), works)
    if spec.written.schedule is None:
        for phase in spec.phases:
            yield from _most([f"{phase}.units"], spec.phase(phase).units, works)
    with_replicas = tuple(_first(smaller_units(spec), works))
    yield from with_replicas or _first(smaller_units(spec, fewest_slots=True), works)
    for phase in spec.phases:  # which share a node's GPUs otherwise, or none at all
        yield from _first(larger_units(spec, phase), works)


def _nodes_at_the_peak(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """The nodes that the units of the busiest window take."""
    yield from _first(_more_nodes(spec), works)
    yield from _first(_uncordoned(spec), works)
    yield from _first(_fewer_spares(spec), works)


def _larger_gpus(spec: ResolvedSpec, works: Works) -> Iterator[Change]:
    """The smallest GPU of the catalog that does, unless nodes are listed with theirs: those are what there is."""
    memory, nodes = spec.gpu.usable_bytes, spec.cluster.nodes
    if memory is None or (isinstance(nodes, list) and any(node.gpu for node in nodes)):
        return
    larger = [(gpu.usable_bytes, name) for name, gpu in GPUS.items() if (gpu.usable_bytes or 0) > memory]
    yield from _first(({"cluster.gpu": name} for _, name in sorted(larger)), works)


def _first(candidates: Iterable[Change], works: Works) -> Iterator[Change]:
    """The first of `candidates` that works, if one does."""
    yield from islice(filter(works, islice(candidates, MAX_TRIES)), 1)


def _asked_at_its_point(spec: ResolvedSpec, phase: Phase, field: str) -> int:
    """Return what the operating point that is written asks of a limit: with less of it no spec is right."""
    point = getattr(spec.written.operating_point, phase)
    asked = getattr(point, POINTS[field], None)
    return asked if isinstance(asked, int) else 1


def _most(paths: list[str], value: int, works: Works, asked: int = 1) -> Iterator[Change]:
    """The largest number below `value` that works in all `paths`, if one does: what works with more works with less,
    down to what is `asked` for."""
    counts_tokens = paths[0].endswith("_tokens")
    usual = min(value, STEP_TOKENS) if paths[0].endswith(".max_batch_tokens") else value
    least, most = max(asked, usual // LEAST_OF_TOKENS if counts_tokens else 1, 2 if counts_tokens else 1), value - 1
    if most < least or not works(dict.fromkeys(paths, least)):
        return
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if works(dict.fromkeys(paths, middle)) else (least, middle - 1)
    yield dict.fromkeys(paths, least)


def _as_published(spec: ResolvedSpec) -> Iterator[Change]:
    """The precision of the model's own checkpoint, in the phases that need more memory in theirs."""
    phases = [phase for phase in spec.phases if spec.phase(phase).precision == "bf16"]
    if phases and spec.model.weights_in != "bf16":
        yield {f"{phase}.precision": spec.model.weights_in for phase in phases}


def _fewer_slots(spec: ResolvedSpec, phase: Phase) -> Iterator[Change]:
    """Redundant experts a slot a GPU fewer at a time."""
    section = spec.phase(phase)
    for redundant in range(section.redundant_experts - section.ep_size, -1, -section.ep_size):
        yield {f"{phase}.redundant_experts": redundant}


def _request_tokens(spec: ResolvedSpec) -> int:
    return spec.phase(spec.phases[0]).max_request_tokens  # equal in all phases: a rule


def _uncordoned(spec: ResolvedSpec) -> Iterator[Change]:
    """Listed nodes that take pods again, from the first, as few as will do."""
    nodes = spec.cluster.nodes
    cordoned = [] if isinstance(nodes, int) else [index for index, node in enumerate(nodes) if node.cordoned]
    for number in range(1, len(cordoned) + 1):
        yield {f"cluster.nodes.{index}.cordoned": False for index in cordoned[:number]}


def _other_gpus(spec: ResolvedSpec) -> Iterator[Change]:
    """A phase on the listed nodes that have other GPUs."""
    nodes = spec.cluster.nodes
    if isinstance(nodes, int) or spec.gpu.usable_bytes is None:
        return
    gpus = dict.fromkeys(node.gpu for node in nodes if node.gpu in GPUS)
    for gpu, phase in product(gpus, reversed(spec.phases)):
        if gpu != spec.written.gpu_name(phase):
            yield {f"{phase}.gpu": gpu}


def _fewer_spares(spec: ResolvedSpec) -> Iterator[Change]:
    """The first of the spares, as many as units leave."""
    spares = spec.cluster.spares
    for number in range(len(spares) - 1, -1, -1):
        yield {"cluster.spares": spares[:number]}


def _more_nodes(spec: ResolvedSpec) -> Iterator[Change]:
    change = lacking_nodes(spec, {phase: spec.phase(phase).ep_size for phase in spec.phases})
    if change:
        yield change


def _one_unit(spec: ResolvedSpec) -> Iterator[Change]:
    """Yield a unit that does both, for a single node that two units cannot share."""
    cluster, written = spec.cluster, spec.document.data
    usable = num_usable(spec)
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

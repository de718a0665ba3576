"""Replace every `auto` in a spec with a number and a reason, and list the defaults that the spec relies on.

Predicted speed decides if the spec has an SLO, or if a field is `auto` that memory cannot decide: `units`,
`attention_tp`, `max_batch_tokens` (`layouts.py`). Otherwise, or if speed cannot be predicted, and always for prefill's
max_requests, memory and shapes decide in this order:
    ep_size             the smallest unit of whole nodes whose KV holds `max_requests` of full length (prefill: one)
                        and the written operating point;
                        smaller units lose fewer GPUs together and send less between nodes
    redundant_experts   the fewest, at least one, that give every GPU the same number of slots, so that hot experts
                        have replicas: 32 at EP32 and at EP144 of 256, like the published system; 0 if no more fit
    max_requests        as many full-length requests as KV holds, and at least those of the operating point
    attention_tp        1
    max_batch_tokens    its default
    units               enough for the traffic's busiest hour if windows or nodes follow the traffic (`fleet.py`);
                        else as many as the nodes hold, in the ratio from `layouts.py`, or equally many of each phase
    schedule.windows    the windows that serve the traffic's profile with the fewest node-hours (`windows.py`)
    cluster.nodes       enough for the units, or for the traffic's peak hour (`fleet.py`)

An unwritten precision follows the checkpoint: FP8 in blocks of 128 x 128 is planned in fp8, NVFP4 in fp4, W4AFP8 in
w4a8, according to quantization_config or hf_quant_config.json. A catalog name means the published checkpoint. A
checkpoint that is not quantised is planned in the default, bf16.

The planner does not know the memory of a `cpu`: there a unit is one node, and max_requests its default.

Near a previous plan, the spec is first decided as if the sizes that `auto` chose there were written. They stay if that
meets the spec. The number of units follows the nodes and the traffic.

The decided spec is checked like any other, so no decision breaks a rule. `spec/phase.py` defines the defaults; this
module only reports them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from planner.estimate.points import operating_point
from planner.facts.engines import OURS
from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.layout.memory import memory_of
from planner.problems.errors import InfeasibleError, SpecError
from planner.rules.check import change_spec
from planner.rules.engine_limits import runs_layout
from planner.search.fleet import Demand, count_nodes, require_speeds, traffic_demand, with_max_nodes
from planner.search.unit_sizes import ep_sizes, even_redundants
from planner.search.windows import decide_windows
from planner.spec.decision import (
    AS_BEFORE,
    DEFAULT,
    FIELDS,
    MAX_REQUESTS,
    Decision,
    is_auto,
    needs_speed,
)
from planner.spec.kv_cache import KvCacheSpec
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.undecided import AUTO, is_undecided

if TYPE_CHECKING:
    from planner.search.layouts import LayoutSearch

DEFAULT_WITHOUT_SPEED = "what it is by default, as speeds decide it and are not known"

TOO_SLOW = "the traffic's busiest hour is not served"

AUTO_FIELDS = ("ep_size", "redundant_experts", "max_requests")

Numbers = dict[str, int]
Former = Mapping[str, int]  # sizes of units in the previous plan, by path


@dataclass(frozen=True)
class Choice:
    """A spec with a number for every `auto`, the decisions behind it, and the search by speed, if speed decided any."""

    original: ResolvedSpec  # before any `auto` was decided
    spec: ResolvedSpec
    decisions: tuple[Decision, ...]  # defaults included
    search: "LayoutSearch | None"  # None if speed decided nothing

    def explain_resizing(self, former: Former, missed: Mapping[str, str]) -> "Choice":
        """Return the choice with reasons that say what the `former` sizes, which it gives up, would miss.

        `missed` is path -> what the former size there would miss.
        """
        resized = {each.path for each in self.decisions if former.get(each.path, each.value) != each.value}
        decisions = (
            replace(each, why=f"with the former sizes {missed[each.path]}; now {each.why}")
            if each.path in resized & missed.keys()
            else each
            for each in self.decisions
        )
        return replace(self, decisions=tuple(decisions))


def decide_near(spec: ResolvedSpec, former: Former) -> Iterator[tuple[Former, Choice | str]]:
    """Yield (`former` sizes of units, by path; the choice for `spec` that adopts these sizes, or what they would miss).

    Sizes that do not fit come first, then all sizes that do together, then those of one phase alone.
    """
    fitting: list[Former] = []
    for sizes, miss in _check_sizes(spec, former):
        if miss:
            yield sizes, miss
        else:
            fitting.append(sizes)
    together = [dict(chain.from_iterable(each.items() for each in fitting))] if len(fitting) > 1 else []
    yield from ((sizes, _adopt(spec, sizes)) for sizes in (*together, *fitting))


def _adopt(spec: ResolvedSpec, sizes: Former) -> Choice | str:
    """Return the choice with these sizes, or the rule, promise or traffic that it would miss."""
    try:
        choice = decide(spec, sizes)
    except (SpecError, InfeasibleError) as error:
        return error.findings[0].broken_rule
    return TOO_SLOW if choice.search is not None and choice.search.is_short else choice


def _check_sizes(spec: ResolvedSpec, former: Former) -> Iterator[tuple[Former, str]]:
    """Yield (the `former` sizes of a phase, by path; why its units no longer fit). The text is empty if they fit."""
    by_speed, (spec, _) = needs_speed(spec), _adopt_checkpoint_precision(spec)
    for phase in spec.phases:
        section = spec.phase(phase)
        autos = {field: f"{phase}.{field}" for field in FIELDS if is_auto(section, field)}
        numbers = {field: former[path] for field, path in autos.items() if path in former}
        if not numbers:
            continue
        wanted = 1 if by_speed else numbers.get("max_requests", _wanted_requests(phase, section))
        tried, tokens = spec.with_numbers(phase, numbers), _written_point(spec, phase)[1]
        miss = ""
        if not runs_layout(tried, phase):
            miss = f"{spec.written.engine_name} does not run the layout"
        elif not _has_room(tried, phase, wanted, tokens):
            miss = f"a GPU has no room for {_requests_in_words(wanted)} of {section.max_request_tokens:,} tokens"
        yield {autos[field]: number for field, number in numbers.items()}, miss


def decide(spec: ResolvedSpec, former: Former | None = None) -> Choice:
    """Return `spec` with a number for every `auto`, and the decisions. Sizes in `former` are taken as they are.

    Raises SpecError if no number satisfies the rules, and InfeasibleError if no layout keeps the SLO.
    """
    original, by_speed = spec, needs_speed(spec)
    spec, decisions = _adopt_checkpoint_precision(spec)
    if former:
        decisions += [Decision(path, number, AS_BEFORE) for path, number in former.items()]
        spec = change_spec(spec, former)
    is_counted, demand = is_undecided(spec.cluster.nodes), traffic_demand(spec)
    spec = with_max_nodes(spec)
    search, layout_decisions = _decide_by_speed(spec, demand) if by_speed else (None, [])
    decisions += layout_decisions
    spec = change_spec(spec, {each.path: each.value for each in layout_decisions}) if layout_decisions else spec
    for phase in spec.phases:
        if any(is_auto(spec.phase(phase), field) for field in AUTO_FIELDS):
            numbers = list(_explain_numbers(spec, phase, *_decide_by_memory(spec, phase)))
            decisions += numbers
            spec = change_spec(spec, {each.path: each.value for each in numbers})
    spec, unit_decisions = _fill_nodes(spec)
    decisions += unit_decisions
    spec, point_decisions = _decide_points(spec)
    decisions += point_decisions
    spec, window_decisions = decide_windows(spec, _unit_rates(search, layout_decisions))
    decisions = _merge_decisions(decisions, [*window_decisions, *_window_decisions(spec.written)])
    if is_counted:
        spec, node_decision = count_nodes(spec, demand)
        decisions.append(node_decision)
    if spec.written.engine_name != OURS:
        named = _engine_decision(spec.written)
        decisions += named
        spec = change_spec(spec, {each.path: each.value for each in named})
    unreported = {each.path for each in decisions} | _unused_fields(spec.written)
    defaults = (
        each for each in _default_decisions(spec.written, spec.document.data, "") if each.path not in unreported
    )
    return Choice(original, spec, (*decisions, *defaults), search)


def _merge_decisions(decisions: Sequence[Decision], later: Sequence[Decision]) -> list[Decision]:
    """Return `decisions` followed by `later`. Of two decisions about one field, only the later one stays."""
    decided = {each.path for each in later}
    return [*(each for each in decisions if each.path not in decided), *later]


def _unused_fields(spec: Spec) -> set[str]:
    """Return the paths of fields that have no effect in this spec. Their defaults are not reported."""
    found = {"decode.max_batch_tokens", "prefill.draft_tokens"}  # decode computes no prompts, prefill no drafts
    if spec.expert_load.file is not None:
        found |= {"expert_load.alpha", "expert_load.seed"}  # nothing is drawn
    if spec.engine_name != OURS:
        found |= {"split", "kubernetes.image"}  # the engine has its own
        found |= {f"kv_cache.{name}" for name in KvCacheSpec.model_fields}
    return found


def _decide_by_speed(spec: ResolvedSpec, demand: Demand | None) -> "tuple[LayoutSearch | None, list[Decision]]":
    """Return (the search for the fastest layouts, its decisions). If speeds are unknown, return (None, the defaults).

    Raises SpecError if the number of nodes is open and speeds are unknown.
    """
    from planner.search.layouts import explain_values, search_layouts  # slow to import, and seldom needed

    search = search_layouts(spec, demand)
    if search:
        return search, explain_values(search, spec, search.values(spec))
    if demand and demand.decides_nodes:
        require_speeds(spec)
    return None, [Decision(path, number, DEFAULT_WITHOUT_SPEED) for path, number in _speed_defaults(spec).items()]


def _unit_rates(search: "LayoutSearch | None", decisions: Sequence[Decision]) -> dict[Phase, float]:
    """Return phase -> tokens/s of one unit, for each phase whose number of units was decided by speed."""
    offers = search.fleet.offers if search else {}
    decided = {each.path for each in decisions}
    return {phase: each.tokens_per_s for phase, each in offers.items() if f"{phase}.units" in decided}


def _speed_defaults(spec: ResolvedSpec) -> Numbers:
    """Return path -> default of each `auto` field that only speed could decide."""
    fields = {"attention_tp": 1, "max_batch_tokens": int(PhaseSpec.model_fields["max_batch_tokens"].default)}
    found = {(phase, field): number for phase in spec.phases for field, number in fields.items()}
    return {f"{phase}.{field}": number for (phase, field), number in found.items() if is_auto(spec.phase(phase), field)}


def _fill_nodes(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions), where each `units: auto` that is left became as many units as the nodes hold.

    Each of these phases gets equally many units.
    """
    left = [phase for phase in spec.phases if is_auto(spec.phase(phase), "units")]
    if not left:
        return spec, []
    from planner.search.layouts import fill_nodes_evenly

    numbers = fill_nodes_evenly(spec)
    why = "as many of each phase as the nodes hold: how fast they are is not known"
    decisions = [Decision(f"{phase}.units", numbers[phase], why) for phase in left]
    return change_spec(spec, {each.path: each.value for each in decisions}), decisions


def _decide_points(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions), where each `auto` in the operating points became a number."""
    left = [
        (phase, field)
        for phase in spec.phases
        for field in ("requests", "step_tokens")
        if getattr(getattr(spec.written.operating_point, phase), field, None) == AUTO
    ]
    whys = {"requests": "as many as max_requests allows and KV has room for", "step_tokens": "max_batch_tokens"}
    decisions = []
    for phase, field in left:
        memory = memory_of(spec, phase)
        point = operating_point(spec, phase, memory.kv_tokens if memory else None)
        decisions.append(Decision(f"operating_point.{phase}.{field}", int(getattr(point, field)), whys[field]))
    values = {each.path: each.value for each in decisions}
    # An operating point's `auto` may be a default that nobody wrote, so the document does not list it yet.
    document = replace(spec.document, autos=spec.document.autos | values.keys())
    return change_spec(replace(spec, document=document), values) if values else spec, decisions


def _decide_by_memory(spec: ResolvedSpec, phase: Phase) -> tuple[Numbers, int]:
    """Return (the phase's `auto` sizes chosen by memory, how many of the wanted full-length requests fit).

    Take the smallest layout with room for the KV of the wanted full-length requests and of the operating point. If
    there is none, take the smallest with room for the operating point's KV, else for that of one request, else the
    largest layout.
    """
    section, sizes = spec.phase(phase), list(_candidate_sizes(spec, phase))
    wanted, (asked, tokens) = _wanted_requests(phase, section), _written_point(spec, phase)
    goals = ((wanted, tokens), (1, tokens), (1, 0.0))
    found = (each for goal in goals for each in sizes if _has_room(spec.with_numbers(phase, each), phase, *goal))
    numbers = next(found, None) or max(reversed(sizes), key=lambda each: each.get("ep_size", 0))
    tried = spec.with_numbers(phase, numbers)
    plan = memory_of(tried, phase)
    if plan is None:
        return numbers, wanted
    if is_auto(section, "max_requests"):
        numbers = numbers | {"max_requests": max(_max_fitting_requests(tried, phase), asked)}
    return numbers, min(plan.full_requests, wanted) if plan.missing_bytes <= 0 else 0


def _has_room(spec: ResolvedSpec, phase: Phase, requests: int, tokens: float) -> bool:
    """Return whether a GPU of `phase` has room for the KV of `requests` full-length requests, and for `tokens` of KV.

    True if the GPU's memory is unknown.
    """
    plan = memory_of(spec, phase)
    return plan is None or (plan.missing_bytes <= 0 and plan.full_requests >= requests and plan.kv_tokens >= tokens)


def _candidate_sizes(spec: ResolvedSpec, phase: Phase) -> Iterator[Numbers]:
    """Yield candidates for the phase's `auto` fields (field -> number), with the lowest allowed `max_requests`.

    EP sizes of one node come first, then parts of a node from the largest down, then more nodes.
    """
    section, per_node = spec.phase(phase), spec.cluster.gpus_per_node
    least = 1 if spec.gpu_of(phase).usable_bytes else _default_requests()
    requests = {"max_requests": max(least, _written_point(spec, phase)[0])}
    sizes = sorted(ep_sizes(spec, phase), key=lambda size: (max(size, per_node), -size))
    even = [(size, redundant) for size in sizes for redundant in _few_redundants(spec, phase, size)]
    in_groups = [(size, redundant) for size, redundant in even if size % section.attention_tp == 0]
    all_ = [{"ep_size": size, "redundant_experts": redundant} | requests for size, redundant in in_groups or even]
    # If the engine can run no candidate, yield all of them: the rules will say why.
    for decided in [each for each in all_ if runs_layout(spec.with_numbers(phase, each), phase)] or all_:
        yield {field: number for field, number in decided.items() if is_auto(section, field)}


def _few_redundants(spec: ResolvedSpec, phase: Phase, ep_size: int) -> list[int]:
    """Return the numbers of redundant experts to try.

    First comes the smallest above 0 that gives all GPUs equally many slots, then 0 if that does too.
    """
    even = even_redundants(spec, phase, ep_size)
    return [*even[1:2], *even[:1]] if 0 in even else [*even[:1]]


def _max_fitting_requests(spec: ResolvedSpec, phase: Phase) -> int:
    """Return how many full-length requests fit on a GPU at a time, at least 1. Buffers also grow with that number."""

    def do_not_fit(requests: int) -> bool:
        tried = spec.with_numbers(phase, {"max_requests": requests})
        plan = memory_of(tried, phase)
        return plan is None or plan.full_requests < requests or not runs_layout(tried, phase)

    return bisect_left(range(2, MAX_REQUESTS + 1), True, key=do_not_fit) + 1


def _written_point(spec: ResolvedSpec, phase: Phase) -> tuple[int, float]:
    """Return (requests, tokens of their KV) that the spec's operating point puts on one GPU.

    Both are zero if the spec gives no number of requests.
    """
    point = getattr(spec.written.operating_point, phase)
    requests = getattr(point, "requests", None)
    return (requests, requests * point.kv_tokens) if isinstance(requests, int) else (0, 0.0)


def _wanted_requests(phase: Phase, section: PhaseSpec) -> int:
    """Return how many full-length requests one GPU must hold.

    In prefill the number is 1, since prefill computes one request at a time and sends its KV away.
    """
    return 1 if phase == "prefill" or is_auto(section, "max_requests") else section.max_requests


def _requests_in_words(number: int) -> str:
    return "a request" if number == 1 else counted(number, "request")


def _default_requests() -> int:
    return int(PhaseSpec.model_fields["max_requests"].default)


def _explain_numbers(spec: ResolvedSpec, phase: Phase, numbers: Numbers, num_held: int) -> Iterator[Decision]:
    section = spec.phase(phase)
    tokens = f"{section.max_request_tokens:,} tokens"
    on_cpu = "memory of a CPU is not known: "
    wanted, requested = _wanted_requests(phase, section), _written_point(spec, phase)[0]
    room = f"the smallest unit of whole nodes whose GPUs each have room for {_requests_in_words(num_held)} of {tokens}"
    room += " and for operating_point" if requested else ""
    whys = {
        "ep_size": room if num_held == wanted else f"{room}, as none has for {wanted}",
        "redundant_experts": "the fewest that give all GPUs equally many slots and hot experts replicas"
        if numbers.get("redundant_experts")
        else "a replica on the only GPU would share no load"
        if numbers.get("ep_size", section.ep_size) == 1
        else "no slot is left for replicas",
        "max_requests": "the most that is planned for"
        if numbers.get("max_requests") == MAX_REQUESTS
        else f"what operating_point.{phase}.requests asks for"
        if numbers.get("max_requests") == requested
        else f"as many of {tokens} as a GPU's KV has room for",
    }
    if spec.gpu_of(phase).usable_bytes is None:
        whys |= {"ep_size": f"{on_cpu}one node", "max_requests": f"{on_cpu}the default"}
    yield from (Decision(f"{phase}.{field}", number, whys[field]) for field, number in numbers.items())


def _adopt_checkpoint_precision(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions), where each phase without a `precision` got the precision of the checkpoint."""
    precision, own, model = spec.model.weights_in, spec.model.quantisation, spec.written.model
    if precision == "bf16":
        return spec, []
    catalog = model if isinstance(model, str) else model.catalog
    where = f"{catalog} was published in" if catalog else f"the checkpoint's {own.said_in} says"
    why = f"what {where}: {own.words}"
    unreported = [phase for phase in spec.phases if "precision" not in spec.document.data[phase]]
    decisions = [Decision(f"{phase}.precision", precision, why) for phase in unreported]
    return change_spec(spec, {each.path: each.value for each in decisions}), decisions


def _window_decisions(spec: Spec) -> Iterator[Decision]:
    """Yield a decision on each phase's number of units, set by the schedule's windows; nothing without a schedule."""
    if spec.schedule is not None:
        for phase in spec.phases:
            yield Decision(f"{phase}.units", spec.num_units(phase), "the most that any window of the schedule has")


def _engine_decision(spec: Spec) -> tuple[Decision, ...]:
    """Return the decision on the engine's version if the spec gives none. An engine's options depend on its version."""
    if isinstance(spec.engine, str):
        return (Decision("engine", {"name": spec.engine, "version": spec.engine_version}, DEFAULT),)
    return () if spec.engine.version else (Decision("engine.version", spec.engine_version, DEFAULT),)


def _default_decisions(section: BaseModel, written: Any, prefix: str) -> Iterator[Decision]:
    """Yield a decision for each default that the schema filled in, in `section` and in the sections below it.

    `written` is the section as the user wrote it, `prefix` its path with a dot.
    """
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            inner = written.get(name, {}) if isinstance(written, dict) else {}
            yield from _default_decisions(value, inner, f"{prefix}{name}.")
        elif name not in written and not field.is_required() and value is not None:
            yield Decision(f"{prefix}{name}", field.default, DEFAULT)  # in the spec's own form

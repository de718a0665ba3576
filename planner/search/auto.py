"""The numbers that a spec leaves to the planner: `auto` becomes a number with a reason, and defaults are named.

With an SLO, or with `auto` for what memory cannot decide (`units`, `attention_tp`, `max_batch_tokens`), speed decides
where it is known (`layouts.py`). Otherwise, and for prefill's requests, memory and shapes do, in this order:
    ep_size             the smallest unit of whole nodes whose KV holds `max_requests` of full length (prefill: one)
                        and the written operating point;
                        fewer GPUs in a unit are fewer that stop together, and less traffic between nodes
    redundant_experts   the fewest that give every GPU equally many slots, at least one, so that hot experts have
                        replicas: 32 at EP32 and at EP144 of 256, as the published system has; none where only that fits
    max_requests        as many of full length as KV has room for, and what the operating point asks for at least
    attention_tp        1, and max_batch_tokens its default
    units               what the traffic's busiest hour takes, where windows or nodes follow the traffic (`fleet.py`);
                        else as many as the nodes hold, in the ratio that `layouts.py` found, or alike
    schedule.windows    those that carry the traffic's profile with the fewest node-hours (`windows.py`)
    cluster.nodes       what the units take, or the traffic's peak hour needs (`fleet.py`)

A precision that is not written follows the checkpoint: one whose quantization_config, or hf_quant_config.json, says
FP8 in blocks of 128 x 128 is planned in fp8, NVFP4 in fp4, W4AFP8 in w4a8. A name of the catalog stands for the
checkpoint that was published. A checkpoint that is not quantised is planned in the default, bf16.

On `cpu` memory is not known: a unit is one node, and max_requests its default.

The spec with the numbers in place is checked like any other, so that what is decided breaks no rule. Defaults are those
of `spec/phase.py`; here they are only told.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from planner.estimate.points import operating_point
from planner.facts.engines import OURS
from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.layout.memory import memory_of
from planner.rules.check import with_values
from planner.rules.engine_limits import runs_layout
from planner.search.decision import DEFAULT, MAX_REQUESTS, Decision, is_auto, wants_speed
from planner.search.fleet import Demand, demand_to_meet, require_speeds, with_counted_nodes, with_room
from planner.search.unit_sizes import all_sizes
from planner.search.windows import with_windows
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.undecided import AUTO, is_undecided

if TYPE_CHECKING:
    from planner.search.layouts import LayoutSearch

__all__ = ["DEFAULT", "Decided", "Decision", "decide"]

NO_SPEED = "what it is by default, as speeds decide it and are not known"

AUTO_FIELDS = ("ep_size", "redundant_experts", "max_requests")

Numbers = dict[str, int]


@dataclass(frozen=True)
class Decided:
    """A spec with a number for every `auto`."""

    asked: ResolvedSpec  # with each `auto`
    spec: ResolvedSpec
    decisions: tuple[Decision, ...]  # all that was decided or taken by default
    search: "LayoutSearch | None"  # what was tried, where speed decided


@dataclass(frozen=True)
class _Held:
    """A layout that was tried, and what it holds."""

    numbers: Numbers
    num_held: int  # of the wanted requests at full length
    has_point: bool  # whether that, and the operating point


@dataclass(frozen=True)
class _Point:
    """What an operating point asks a GPU to hold."""

    requests: int
    tokens: float


def decide(spec: ResolvedSpec) -> Decided:
    """Return `spec` with numbers for every `auto`.

    Raises SpecError when no number would do, and InfeasibleError when no layout keeps the SLO.
    """
    asked = spec
    spec, decisions = _as_its_checkpoint(spec)
    decisions += _of_forecast(spec)
    is_counted, demand = is_undecided(spec.cluster.nodes), demand_to_meet(spec)
    spec = with_room(spec)
    search, of_layouts = _by_speed(spec, demand) if wants_speed(spec) else (None, [])
    decisions += of_layouts
    spec = with_values(spec, {each.path: each.value for each in of_layouts}) if of_layouts else spec
    for phase in spec.phases:
        if any(is_auto(spec.phase(phase), field) for field in AUTO_FIELDS):
            numbers, num_held = _decide(spec, phase)
            decisions += _reasons(spec, phase, numbers, num_held)
            spec = with_values(spec, {f"{phase}.{field}": number for field, number in numbers.items()})
    spec, of_nodes = _fill(spec)
    decisions += of_nodes
    spec, of_points = _at_their_points(spec)
    decisions += of_points
    spec, of_day = with_windows(spec, _rates(search, of_layouts))
    decisions = _with(decisions, [*of_day, *_of_windows(spec.written)])
    if is_counted:
        spec, of_cluster = with_counted_nodes(spec, demand)
        decisions.append(of_cluster)
    if spec.written.engine_name != OURS:
        named = _of_engine(spec.written)
        decisions += named
        spec = with_values(spec, {each.path: each.value for each in named})
    silent = {each.path for each in decisions} | _of_no_effect(spec.written)
    defaults = (each for each in _defaults(spec.written, spec.document.data, "") if each.path not in silent)
    return Decided(asked, spec, (*decisions, *defaults), search)


def _with(decisions: Sequence[Decision], later: Sequence[Decision]) -> list[Decision]:
    """Return all of them; a later one stands for an earlier one of the same field."""
    decided = {each.path for each in later}
    return [*(each for each in decisions if each.path not in decided), *later]


def _of_no_effect(spec: Spec) -> set[str]:
    """Return the fields whose defaults change nothing, so that nobody is told of them."""
    found = {"decode.max_batch_tokens", "prefill.draft_tokens"}  # prompts are prefill's, drafts decode's
    if spec.expert_load.file is not None:
        found |= {"expert_load.alpha", "expert_load.seed"}  # nothing is drawn
    if spec.engine_name != OURS:
        found |= {"split", "kubernetes.image"}  # the engine has its own
    return found


def _by_speed(spec: ResolvedSpec, demand: Demand | None) -> "tuple[LayoutSearch | None, list[Decision]]":
    """Return what was searched, and decided by it; where speeds are not known, the defaults of what they decide."""
    from planner.search.layouts import reasons_of, search_layouts  # only who asks for speed waits for its imports

    search = search_layouts(spec, demand)
    if search:
        return search, reasons_of(search, spec, search.values(spec))
    if demand and demand.counts_nodes:
        require_speeds(spec)
    return None, [Decision(path, number, NO_SPEED) for path, number in _without_speed(spec).items()]


def _of_forecast(spec: ResolvedSpec) -> list[Decision]:
    """Return the profile that was forecast, where past days are given."""
    if spec.forecast is None or spec.written.traffic is None:
        return []
    day, quantile = spec.forecast, spec.written.traffic.quantile
    days = counted(day.num_days, "past day")
    above = f"{day.times_the_median - 1:.1%} above the median day, whose tokens are those of traffic"
    if not any(day.median):
        above = "and the median day has no demand"
    why = f"quantile {quantile:g} of the forecast for {day.date} from {days}, {above}"
    if day.num_outages:
        why += f"; {day.num_outages} entries are left out, in which next to nothing was asked, as in an outage"
    return [Decision("traffic.profile", list(day.quantile), why)]


def _rates(search: "LayoutSearch | None", decisions: Sequence[Decision]) -> dict[Phase, float]:
    """Return the tokens/s of a unit of each phase whose units speed has counted."""
    offers = search.fleet.offers if search else {}
    decided = {each.path for each in decisions}
    return {phase: each.tokens_per_s for phase, each in offers.items() if f"{phase}.units" in decided}


def _without_speed(spec: ResolvedSpec) -> Numbers:
    """Return the defaults of what only speed could decide."""
    fields = {"attention_tp": 1, "max_batch_tokens": int(PhaseSpec.model_fields["max_batch_tokens"].default)}
    found = {(phase, field): number for phase in spec.phases for field, number in fields.items()}
    return {f"{phase}.{field}": number for (phase, field), number in found.items() if is_auto(spec.phase(phase), field)}


def _fill(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with units in place of those `auto` that speed has left: as many of each phase as fit."""
    left = [phase for phase in spec.phases if is_auto(spec.phase(phase), "units")]
    if not left:
        return spec, []
    from planner.search.layouts import units_by_nodes

    numbers = units_by_nodes(spec)
    why = "as many of each phase as the nodes hold: how fast they are is not known"
    decisions = [Decision(f"{phase}.units", numbers[phase], why) for phase in left]
    return with_values(spec, {each.path: each.value for each in decisions}), decisions


def _at_their_points(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return `spec` with numbers for what its operating points leave to the planner."""
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
    by_default = replace(spec.document, autos=spec.document.autos | values.keys())  # auto, though nobody wrote it
    return with_values(replace(spec, document=by_default), values) if values else spec, decisions


def _decide(spec: ResolvedSpec, phase: Phase) -> tuple[Numbers, int]:
    """The first layout that holds what is wanted and the operating point, else the first that holds the point, else the
    first that holds one request, else the largest.

    With it, how many of the wanted requests it holds at full length.
    """
    section = spec.phase(phase)
    wanted, point = _wanted_requests(phase, section), _written_point(spec, phase)
    held: list[_Held] = []
    for numbers in _layouts(spec, phase):
        plan = memory_of(spec.trying(phase, numbers), phase)
        if plan is None:
            return numbers, wanted
        num_held = min(plan.full_requests, wanted) if plan.short <= 0 else 0
        held.append(_Held(numbers, num_held, num_held > 0 and point.tokens <= plan.kv_tokens))
        if num_held == wanted and held[-1].has_point:
            held = held[-1:]
            break
    largest = max(reversed(held), key=lambda each: each.numbers.get("ep_size", 0))
    best = next(chain((each for each in held if each.has_point), (each for each in held if each.num_held)), largest)
    numbers = best.numbers
    if is_auto(section, "max_requests"):
        most = _most_requests(spec.trying(phase, numbers), phase)
        numbers = numbers | {"max_requests": max(most, point.requests)}
    return numbers, best.num_held


def _layouts(spec: ResolvedSpec, phase: Phase) -> Iterator[Numbers]:
    """EP sizes from the smallest, each with its redundant experts; max_requests as small as can be."""
    section, num_logical = spec.phase(phase), spec.model.num_routed_experts
    least = 1 if spec.gpu_of(phase).usable_bytes else _default_requests()
    requests = {"max_requests": max(least, _written_point(spec, phase).requests)}
    even = [
        (size, redundant)
        for size in _ep_sizes(spec, section)
        for redundant in _redundant(section, num_logical, size)
        if (num_logical + redundant) % size == 0
    ]
    in_groups = [(size, redundant) for size, redundant in even if size % section.attention_tp == 0]
    right = [(size, redundant) for size, redundant in in_groups if redundant <= num_logical * (size - 1)]
    all_ = [
        {"ep_size": size, "redundant_experts": redundant} | requests for size, redundant in right or in_groups or even
    ]  # where none is right, the rules say why
    for decided in [each for each in all_ if runs_layout(spec.trying(phase, each), phase)] or all_:
        yield {field: number for field, number in decided.items() if is_auto(section, field)}


def _ep_sizes(spec: ResolvedSpec, section: PhaseSpec) -> Sequence[int]:
    """Whole nodes from one on; where experts do not spread over one evenly, a part of it."""
    if not is_auto(section, "ep_size"):
        return [section.ep_size]
    return sorted(all_sizes(spec), key=lambda size: (max(size, spec.cluster.gpus_per_node), -size))


def _redundant(section: PhaseSpec, num_logical: int, ep_size: int) -> Sequence[int]:
    if not is_auto(section, "redundant_experts"):
        return [section.redundant_experts]
    fewest = -num_logical % ep_size or (ep_size if ep_size > 1 else 0)
    return [fewest, 0]


def _most_requests(spec: ResolvedSpec, phase: Phase) -> int:
    """The largest number of requests of full length that fit at a time, at least 1: buffers grow with it too."""

    def are_too_many(requests: int) -> bool:
        tried = spec.trying(phase, {"max_requests": requests})
        plan = memory_of(tried, phase)
        return plan is None or plan.full_requests < requests or not runs_layout(tried, phase)

    return bisect_left(range(2, MAX_REQUESTS + 1), True, key=are_too_many) + 1


def _written_point(spec: ResolvedSpec, phase: Phase) -> "_Point":
    """Return what the spec's operating point asks a GPU to hold; nothing where it leaves that to the planner."""
    point = getattr(spec.written.operating_point, phase)
    requests = getattr(point, "requests", None)
    return _Point(requests, requests * point.kv_tokens) if isinstance(requests, int) else _Point(0, 0)


def _wanted_requests(phase: Phase, section: PhaseSpec) -> int:
    """Return the wanted requests of full length on one GPU; prefill computes one and hands it on."""
    return 1 if phase == "prefill" or is_auto(section, "max_requests") else section.max_requests


def _requests(number: int) -> str:
    return "a request" if number == 1 else counted(number, "request")


def _default_requests() -> int:
    return int(PhaseSpec.model_fields["max_requests"].default)


def _reasons(spec: ResolvedSpec, phase: Phase, numbers: Numbers, num_held: int) -> Iterator[Decision]:
    section = spec.phase(phase)
    tokens = f"{section.max_request_tokens:,} tokens"
    on_cpu = "memory of a CPU is not known: "
    wanted, asked = _wanted_requests(phase, section), _written_point(spec, phase).requests
    room = f"the smallest unit of whole nodes whose GPUs each have room for {_requests(num_held)} of {tokens}"
    room += " and for operating_point" if asked else ""
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
        if numbers.get("max_requests") == asked
        else f"as many of {tokens} as a GPU's KV has room for",
    }
    if spec.gpu_of(phase).usable_bytes is None:
        whys |= {"ep_size": f"{on_cpu}one node", "max_requests": f"{on_cpu}the default"}
    yield from (Decision(f"{phase}.{field}", number, whys[field]) for field, number in numbers.items())


def _as_its_checkpoint(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """`spec` with the precision of its checkpoint, in the phases that do not say one."""
    precision, own, model = spec.model.weights_in, spec.model.quantisation, spec.written.model
    if precision == "bf16":
        return spec, []
    catalog = model if isinstance(model, str) else model.catalog
    where = f"{catalog} was published in" if catalog else f"the checkpoint's {own.said_in} says"
    why = f"what {where}: {own.words}"
    silent = [phase for phase in spec.phases if "precision" not in spec.document.data[phase]]
    decisions = [Decision(f"{phase}.precision", precision, why) for phase in silent]
    return with_values(spec, {each.path: each.value for each in decisions}), decisions


def _of_windows(spec: Spec) -> Iterator[Decision]:
    """Yield the units of each phase that a schedule counts, where there is one."""
    if spec.schedule is not None:
        for phase in spec.phases:
            yield Decision(f"{phase}.units", spec.num_units(phase), "the most that any window of the schedule has")


def _of_engine(spec: Spec) -> tuple[Decision, ...]:
    """The version of another engine, whose options are those that its units are told."""
    if isinstance(spec.engine, str):
        return (Decision("engine", {"name": spec.engine, "version": spec.engine_version}, DEFAULT),)
    return () if spec.engine.version else (Decision("engine.version", spec.engine_version, DEFAULT),)


def _defaults(section: BaseModel, written: Any, prefix: str) -> Iterator[Decision]:
    """What the spec does not write and `spec/schema.py` fills in, section by section."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            inner = written.get(name, {}) if isinstance(written, dict) else {}
            yield from _defaults(value, inner, f"{prefix}{name}.")
        elif name not in written and not field.is_required() and value is not None:
            yield Decision(f"{prefix}{name}", field.default, DEFAULT)  # as one would write it

"""Replace every `auto` in a spec with a number and a reason, and list the defaults that the spec relies on.

`layouts.py` chooses the layouts and the numbers of units, by predicted speed or by memory alone. A prefill rank then
gets as many requests as its KV holds. The traffic may decide more:
    schedule.windows    the windows that serve the traffic's profile with the fewest node-hours (`windows.py`)
    cluster.nodes       enough for the units, or for the traffic's peak hour (`fleet.py`)

An unwritten precision follows the checkpoint: FP8 in blocks of 128 x 128 is planned in fp8, NVFP4 in fp4, W4AFP8 in
w4a8, according to quantization_config or hf_quant_config.json. A catalog name means the published checkpoint. A
checkpoint that is not quantised is planned in the default, bf16.

Near a previous plan, the spec is first decided as if the sizes that `auto` chose there were written. They stay if that
meets the spec. The number of units follows the nodes and the traffic.

The decided spec is checked like any other, so no decision breaks a rule. `spec/phase.py` defines the defaults; this
module only reports them.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from planner.estimate.points import operating_point
from planner.facts.engines import OURS
from planner.facts.terms import Phase
from planner.layout.memory import memory_of
from planner.problems.errors import InfeasibleError, SpecError
from planner.rules.check import change_spec
from planner.rules.engine_limits import runs_layout
from planner.search.fleet import Demand, count_nodes, traffic_demand, with_max_nodes
from planner.search.windows import decide_windows
from planner.spec.decision import (
    AS_BEFORE,
    DEFAULT,
    DEFAULT_REQUESTS,
    FIELDS,
    MAX_REQUESTS,
    Decision,
    is_auto,
    searched_fields,
)
from planner.spec.kv_cache import KvCacheSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.undecided import AUTO, is_undecided

if TYPE_CHECKING:
    from planner.search.layouts import LayoutSearch

TOO_SLOW = "the traffic's busiest hour is not served"

Former = Mapping[str, int]  # sizes of units in the previous plan, by path


@dataclass(frozen=True)
class Choice:
    """A spec with a number for every `auto`, the decisions behind it, and the search by speed, if speed decided any."""

    original: ResolvedSpec  # before any `auto` was decided
    spec: ResolvedSpec
    decisions: tuple[Decision, ...]  # defaults included
    search: "LayoutSearch | None"  # None if speed decided nothing

    @property
    def searched(self) -> Collection[Phase]:
        """Return the phases whose layouts the search chose by speed."""
        return self.search.chosen if self.search else ()

    def explain_resizing(self, former: Former, missed: Mapping[str, str]) -> "Choice":
        """Return the choice in which each size that differs from the previous plan's also says why.

        `former` is path -> size in the previous plan. `missed` is path -> the rule that the former sizes would break;
        a size whose path is not in it gets no further reason.
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
    """Yield (sizes of units from `former`, by path; the choice for `spec` with these sizes).

    In place of a choice stand words on the rule, promise or traffic that these sizes would miss. Sizes of all phases
    together come first, then sizes of one phase. Only sizes that are `auto` in the spec count.
    """
    autos = {p: {f"{p}.{field}" for field in FIELDS if is_auto(spec.phase(p), field)} for p in spec.phases}
    of_phases = [{path: former[path] for path in sorted(own & former.keys())} for own in autos.values()]
    found = [each for each in of_phases if each]
    together = [dict(chain.from_iterable(each.items() for each in found))] if len(found) > 1 else []
    yield from ((sizes, _adopt(spec, sizes)) for sizes in (*together, *found))


def _adopt(spec: ResolvedSpec, sizes: Former) -> Choice | str:
    """Return the choice with these sizes, or in words the rule, promise or traffic that it would miss."""
    try:
        choice = decide(spec, sizes)
    except (SpecError, InfeasibleError) as error:
        return error.findings[0].broken_rule
    if not all(runs_layout(choice.spec, phase) for phase in spec.phases):
        return f"{spec.written.engine_name} does not run the layout"
    return TOO_SLOW if choice.search is not None and choice.search.is_short else choice


def decide(spec: ResolvedSpec, former: Former | None = None) -> Choice:
    """Return `spec` with a number for every `auto`, and the decisions. Sizes in `former` are taken as they are.

    Raises SpecError if no number satisfies the rules, and InfeasibleError if no layout keeps the SLO.
    """
    original = spec
    spec, decisions = _adopt_checkpoint_precision(spec)
    if former:
        decisions += [Decision(path, number, AS_BEFORE) for path, number in former.items()]
        spec = change_spec(spec, former)
    is_counted, demand = is_undecided(spec.cluster.nodes), traffic_demand(spec)
    spec = with_max_nodes(spec)
    search, layout_decisions = _decide_layouts(spec, demand)
    decisions += layout_decisions
    spec = change_spec(spec, {each.path: each.value for each in layout_decisions}) if layout_decisions else spec
    spec, request_decisions = _decide_prefill_requests(spec)
    decisions += request_decisions
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


def _decide_layouts(spec: ResolvedSpec, demand: Demand | None) -> "tuple[LayoutSearch | None, list[Decision]]":
    """Return (the search for the fastest layouts, a decision for each `auto` of a phase that it decided).

    The search is None if nothing is `auto`, if memory alone decides or if no layout fits. Raises SpecError if the
    number of nodes is open and speeds are unknown.
    """
    if not any(is_auto(spec.phase(phase), each) for phase in spec.phases for each in searched_fields(phase)):
        return None, []
    from planner.search.layouts import search_layouts  # slow to import, and seldom needed

    return search_layouts(spec, demand)


def _unit_rates(search: "LayoutSearch | None", decisions: Sequence[Decision]) -> dict[Phase, float]:
    """Return phase -> tokens/s of one unit, for each phase whose number of units was decided by speed."""
    offers = search.fleet.offers if search else {}
    decided = {each.path for each in decisions}
    return {phase: each.tokens_per_s for phase, each in offers.items() if f"{phase}.units" in decided}


def _decide_prefill_requests(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions), where `auto` requests of a prefill rank became as many as its KV has room for.

    Prompts beyond those that fill a step do not change prefill's speed, so memory alone decides.
    """
    if "prefill" not in spec.phases or not is_auto(spec.phase("prefill"), "max_requests"):
        return spec, []
    number, why = _max_fitting_requests(spec, "prefill"), "as many of full length as a GPU's KV has room for"
    if spec.gpu_of("prefill").usable_bytes is None:
        number, why = DEFAULT_REQUESTS, "memory of a CPU is not known: the default"
    decision = Decision("prefill.max_requests", number, why)
    return change_spec(spec, {decision.path: number}), [decision]


def _decide_points(spec: ResolvedSpec) -> tuple[ResolvedSpec, list[Decision]]:
    """Return (spec, decisions), where each `auto` in the operating points became a number."""
    left = [
        (phase, field)
        for phase in spec.phases
        for field in ("requests", "step_tokens")
        if getattr(getattr(spec.written.operating_point, phase), field, None) == AUTO
    ]
    whys = {
        "requests": "as many as max_requests allows and KV has room for",
        "step_tokens": "as many as max_batch_tokens and max_requests allow",
    }
    decisions = []
    for phase, field in left:
        memory = memory_of(spec, phase)
        point = operating_point(spec, phase, memory.kv_tokens if memory else None)
        decisions.append(Decision(f"operating_point.{phase}.{field}", int(getattr(point, field)), whys[field]))
    values = {each.path: each.value for each in decisions}
    # An operating point's `auto` may be a default that nobody wrote, so the document does not list it yet.
    document = replace(spec.document, autos=spec.document.autos | values.keys())
    return change_spec(replace(spec, document=document), values) if values else spec, decisions


def _max_fitting_requests(spec: ResolvedSpec, phase: Phase) -> int:
    """Return how many full-length requests fit on a GPU at a time, at least 1. Buffers also grow with that number."""

    def do_not_fit(requests: int) -> bool:
        tried = spec.with_numbers(phase, {"max_requests": requests})
        plan = memory_of(tried, phase)
        return plan is None or plan.full_requests < requests or not runs_layout(tried, phase)

    return bisect_left(range(2, MAX_REQUESTS + 1), True, key=do_not_fit) + 1


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

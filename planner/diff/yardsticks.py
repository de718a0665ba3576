"""Measure the new plan by what the old spec asks, promises and pays, too.

A change may edit the yardsticks that it is judged by: traffic, promised latencies, the load at which latencies are
predicted, prices, and the rates of the same GPU. With half the traffic half the units suffice, and without a promise
none is missed. Other fields move such figures on the side: more even loads are drawn by a lower `alpha`, the mean
request is shorter with lower limits, and less is hit in a smaller cache. So the new plan is compiled again with
the former sections in its spec, and each figure is judged twice. Of a promise the stricter one counts. What the former
spec does not say stays as the new one says it. Where the time zone moves, callers do not: the former traffic is that of
the new clock's hours (`hours.py`).

Expert loads are a yardstick as well, for a file of even ones makes any plan fast. New maps are made for new loads, and
do worse with the former ones. So a change of nothing else is not judged by those, but shows the figures. Nor does the
seed of drawn loads count, by which other experts are hot, but no fewer.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from planner.compiler import Compiled, compile_again
from planner.diff.change import SpecField
from planner.diff.former import identify_loads
from planner.diff.hours import hit_rate, moved_zones, share_of_hits, traffic_by_clock
from planner.diff.unjudged import differing_fields
from planner.facts.loads import Loads
from planner.facts.terms import PHASES, Phase
from planner.plan.plan import Plan
from planner.plan.sections import ModelShape
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.finding import Unknown
from planner.rules.check import change_spec
from planner.spec.operating_point import SloSpec
from planner.spec.request_lengths import request_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec

POINT = "operating_point"
SECTIONS = ("traffic", "slo", POINT, "cost")
GPU = "cluster.gpu"
ZONE = "schedule.timezone"
TRACE = "trace"  # a profile is made from it
LOADS = "expert_load"
CACHE = "kv_cache"
LIMITS = ("max_request_tokens", "max_requests")  # the mean request follows from them if no field tells it
LENGTHS: dict[Phase, tuple[str, ...]] = {
    "prefill": ("prompt_tokens",),
    "decode": ("kv_tokens",),
    "mixed": ("prompt_tokens", "kv_tokens"),
}
FINISHED = "it is a finished plan, which is not planned again"
OTHERS = "with them something else would be deployed"


@dataclass(frozen=True)
class Remeasured:
    """The yardsticks that a change moves, and the new plan with its figures under the former ones."""

    moved: tuple[SpecField, ...] = ()
    plan: Plan | None = None  # None if nothing needs to be measured, or if nobody can tell
    unknown: str = ""  # why nobody can tell
    counts: bool = True  # whether a change is judged by them; False where expert loads are all that changes


def measure_by_former(former: Plan, found: Compiled | Plan, known_loads: Loads | None = None) -> Remeasured:
    """Return what the change moves, and the plan of `found` with its figures under the yardsticks of `former`.

    If `former` has no figures, as in a rendered folder, the plan gets only figures of its demand. `known_loads` are the
    measured expert loads that `former` was made for, if the caller has read them.
    """
    after = found if isinstance(found, Plan) else found.deployed_with_demand
    loads = None if isinstance(found, Plan) else _former_loads(former, found.choice.spec, known_loads)
    of_loads = tuple(_moved_loads(former, found, after, loads))
    moved = (*find_moved(former, after), *of_loads)
    if not moved:
        return Remeasured()
    counts = moved != of_loads or after.spec.expert_load.file is None or _drop_loads(former) != _drop_loads(after)
    remeasured = Remeasured(moved, counts=counts)
    try:
        if isinstance(found, Plan):
            raise Unknown(FINISHED)
        if of_loads and loads is None:
            raise Unknown(_explain_unknown_loads(former))
        return replace(remeasured, plan=_measure(former, found, after, loads))
    except (SpecError, InfeasibleError) as error:
        return replace(remeasured, unknown=error.findings[0].rule_and_reason)
    except Unknown as error:
        return replace(remeasured, unknown=str(error) or OTHERS)


def _measure(former: Plan, found: Compiled, after: Plan, loads: Loads | None) -> Plan:
    """Return the plan of `found` under the former yardsticks, with `loads` if they are given.

    A GPU that is described otherwise is measured as it was described. If other pods would be deployed then, or the
    layout would not fit, it is another GPU. Raises SpecError, InfeasibleError or Unknown if nobody can tell.
    """
    _require_room_for_requests(former, after)
    sections, described = _former_sections(former, found.choice.spec, after), {GPU: former.written["cluster"]["gpu"]}
    if former.spec.cluster.gpu != after.spec.cluster.gpu:
        with suppress(SpecError, InfeasibleError, Unknown):
            return _measure_with(described | sections, found, after, loads, former.report is not None)
    return _measure_with(sections, found, after, loads, former.report is not None)


def _measure_with(values: dict[str, Any], found: Compiled, after: Plan, loads: Loads | None, has_figures: bool) -> Plan:
    above = tuple(f"{path}." for path in values)
    decisions = tuple(each for each in found.choice.decisions if not each.path.startswith(above))  # `values` has others
    spec = change_spec(found.choice.spec, values)
    spec = replace(spec, measured_loads=loads) if loads else spec
    choice = replace(found.choice, spec=spec, decisions=decisions)
    return compile_again(after, choice, found.calibration, has_figures=has_figures)


def find_moved(before: Plan, after: Plan) -> Iterator[SpecField]:
    """Yield the yardsticks that differ between two plans' specs, but for their expert loads."""
    for section in SECTIONS:
        yield from differing_fields(getattr(before.spec, section), getattr(after.spec, section), section)
    yield from differing_fields(before.spec.cluster.gpu, after.spec.cluster.gpu, GPU)
    if (share := share_of_hits(before, after)) < 1:
        hits = hit_rate(before, after)
        yield SpecField(path=CACHE, values=(f"{hits:.1%} hits", f"{hits * share:.1%}"))
    for phase in _former_requests(before, after):
        for key in LIMITS:
            old, new = (getattr(plan.spec.phase(phase), key) for plan in (before, after))
            yield from differing_fields(old, new, f"{phase}.{key}")
    if (zones := moved_zones(before, after)) is not None:
        yield SpecField(path=ZONE, values=zones)


def _former_sections(former: Plan, spec: ResolvedSpec, after: Plan) -> dict[str, Any]:
    """Return what to write into `spec` so that its plan is judged by what was asked of the `former` plan.

    That is the former traffic, prices and operating point, and the stricter promise of each latency. `after`, the new
    plan, gives what the former spec left open.
    """
    sections = {section: former.written.get(section) for section in SECTIONS}
    if (traffic := traffic_by_clock(former, after)) != former.spec.traffic and traffic is not None:
        sections["traffic"] = traffic.model_dump(exclude_none=True)
    sections["slo"] = _stricter_slo(former.spec.slo, spec.written.slo)
    has_traffic = spec.written.traffic is not None or former.spec.traffic is not None
    point = (sections[POINT] or {}) | _former_requests(former, after)
    sections[POINT] = _fit_point(point, spec.written, has_traffic=has_traffic)
    if (share := share_of_hits(former, after)) < 1:
        traffic = sections["traffic"] or after.written["traffic"]
        sections["traffic"] = traffic | {"cache_hit_rate": hit_rate(former if sections["traffic"] else after) * share}
    if sections["traffic"]:
        sections["traffic"] = {key: value for key, value in sections["traffic"].items() if key != TRACE}
    return {name: section for name, section in sections.items() if section or name == POINT}


def _former_loads(former: Plan, spec: ResolvedSpec, known: Loads | None) -> Loads | None:
    """Return the expert loads that `former` was made for; None if they are unknown.

    If loads are drawn in both specs, the former ones are drawn with the new seed. For another model, return the new
    spec's loads. A file that only the former plan names is not opened.
    """
    old, new = former.spec.expert_load, spec.written.expert_load
    if old.file is None:
        drawn = old if new.file else old.model_copy(update={"seed": new.seed})
        written = spec.written.model_copy(update={LOADS: drawn})
        return replace(spec, written=written, measured_loads=None).expert_loads
    if former.model != ModelShape.model_validate(spec.model):
        return spec.expert_loads
    if known is not None:
        return known
    are_same = new.file is not None and former.inputs.get(old.file) == spec.inputs[new.file]
    return spec.measured_loads if are_same else None


def _explain_unknown_loads(former: Plan) -> str:
    """Return why nobody knows the measured loads that `former` was made for."""
    file = former.spec.expert_load.file
    return f"{file} is not opened, because only a plan names it: give OLD as its spec to compare under those loads"


def _moved_loads(former: Plan, found: Compiled | Plan, after: Plan, loads: Loads | None) -> Iterator[SpecField]:
    """Yield the field of the expert loads, if those of the new plan differ from the former `loads`.

    A rendered folder keeps no digest of measured ones. So other measured ones count as the same, if nobody knows them.
    """
    old, new = former.spec.expert_load, after.spec.expert_load
    if isinstance(found, Plan):
        named = identify_loads(former), identify_loads(after)
        differ = None not in named and named[0] != named[1]
    elif loads is None:
        differ = new.file is None or old.file in former.inputs
    else:
        differ = loads != found.choice.spec.expert_loads
    if old.file is None and new.file is None:
        yield from differing_fields(old.alpha, new.alpha, f"{LOADS}.alpha")
    elif differ:
        yield SpecField(path=LOADS, values=None)


def _drop_loads(plan: Plan) -> dict[str, Any]:
    """Return a plan's spec without its expert loads, but with `live`: how maps change while units run."""
    return plan.written | {LOADS: plan.written.get(LOADS, {}).get("live")}


def _former_requests(former: Plan, after: Plan) -> dict[Phase, dict[str, int]]:
    """Return phase -> lengths of its former mean request, where these followed from limits and the limits changed."""
    traffic = former.spec.traffic or after.spec.traffic
    if traffic is not None and traffic.requests is not None:
        return {}
    phases = [phase for phase in after.phases if phase in former.phases and _is_left_to_limits(former, phase)]
    return {
        phase: old
        for phase in phases
        if (old := _mean_request(former, phase)) != _mean_request(after, phase)
        and any(getattr(former.spec.phase(phase), key) != getattr(after.spec.phase(phase), key) for key in LIMITS)
    }


def _is_left_to_limits(plan: Plan, phase: Phase) -> bool:
    return getattr(plan.spec.operating_point, phase) is None


def _mean_request(plan: Plan, phase: Phase) -> dict[str, int]:
    """Return the lengths of a phase's mean request that follow from limits, as fields of its operating point."""
    lengths, kv_room = request_lengths(plan.spec, phase), plan.memory[phase].kv_tokens if phase in plan.memory else None
    kv_tokens = lengths.kv_within(kv_room, plan.spec.phase(phase).max_requests)
    fields = {"prompt_tokens": lengths.prompt, "kv_tokens": kv_tokens}
    return {key: fields[key] for key in LENGTHS[phase]}


def _require_room_for_requests(former: Plan, after: Plan) -> None:
    """Raise Unknown if the former mean request is longer than the new plan's longest request."""
    for phase, lengths in _former_requests(former, after).items():
        tokens, most = max(lengths.values()), after.spec.phase(phase).max_request_tokens
        if tokens > most:
            raise Unknown(
                f"{phase}'s mean request was taken as {tokens:,} tokens, longer than the new limit of {most:,};"
                " traffic.requests tells what it is"
            )


def _fit_point(point: Mapping[str, Any], spec: Spec, *, has_traffic: bool) -> dict[str, Any] | None:
    """Return the operating point `point` with its loads cut at the limits of `spec`, for the phases of `spec`.

    With traffic, the share of cache hits is left out, because the traffic gives it. None if no field is left.
    """
    found = {key: value for key, value in point.items() if key not in PHASES or key in spec.phases}
    for phase in (each for each in spec.phases if each in found):
        section = spec.phase(phase)
        step_tokens = min(section.max_batch_tokens, section.max_requests * found[phase].get("prompt_tokens", 1))
        limits = {"requests": section.max_requests, "step_tokens": step_tokens}
        fields = {key: value for key, value in found[phase].items() if key != "cache_hit_rate" or not has_traffic}
        found[phase] = fields | {key: min(fields[key], most) for key, most in limits.items() if key in fields}
    return found or None


def _stricter_slo(old: SloSpec, new: SloSpec) -> dict[str, float] | None:
    """Return latency -> the smaller of both promises, in ms; None if neither spec promises a latency."""
    promised = {
        name: [each for slo in (old, new) if (each := getattr(slo, name)) is not None] for name in SloSpec.model_fields
    }
    return {name: min(each) for name, each in promised.items() if each} or None

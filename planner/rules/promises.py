"""Warn of latencies that a spec promises under `slo` and that its plan is predicted to miss, and of slow overlaps.

They stay warnings: predictions have wide ranges, and a promise may be a wish. If `auto` chose the layout, the search
kept the promise with an estimate of the expert map's balance; the plan predicts with the map itself.

Fixes offer a weaker promise and, if the spec writes a load, a lighter load that keeps the promise: fewer requests,
shorter steps, lower utilisation. Before a load is offered, its latency is predicted with the plan's maps, and so is the
number of units that the same tokens then take.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from planner.estimate.throughput.intervals import Estimate
from planner.estimate.throughput.predict import Prediction, saturated_rate
from planner.estimate.utilisation import MIN_OFFERED_UTILISATION, highest_utilisation, shorter_steps
from planner.facts.quantities import MS_PER_S
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Change, Fix, removal
from planner.rules.rule import Candidate, Rule
from planner.spec.resolved import ResolvedSpec

CHOSEN = "auto chose its layout before its expert map was known"
GIVEN = {
    "ttft": "prompts wait less in units that are less full, and are computed sooner in shorter steps",
    "tpot": "steps with fewer requests are shorter",
}
GIVEN_TURNS = "with fewer requests turns are shorter, and prompts wait less for theirs"  # for mixed units
WAITING = "its units are so full that prompts wait longer for their turn"
LEAST_GAIN = 1.05  # assumed: smaller differences between two overlaps are within the prediction's error
MIN_UNITS_RATIO = 1.005  # below this ratio, do not mention the number of units


@dataclass(frozen=True)
class _Offer:
    """A change of the spec that a fix offers, and the words for it."""

    change: Change
    words: str


def slo_is_kept(c: Candidate) -> Iterator[Finding]:
    """Warn of each promised latency that a phase is predicted to miss."""
    for outlook in c.speed:
        if outlook.prediction is not None:
            yield from _report_misses(c, outlook.phase, outlook.prediction)


def overlap_pays_off(c: Candidate) -> Iterator[Finding]:
    """Warn of each phase that is predicted to be faster without its overlap.

    Overlap computes one micro-batch while the other's tokens travel. But each micro-batch reads the weights again,
    fills the matmuls' tiles less, and leaves processors to the exchange. If the exchange is short or the batch is
    small, this costs more time than the overlap hides. SGLang measures the same: two-batch overlap gains nothing on H20
    until a batch has 64 or 128 requests (github.com/sgl-project/sglang pull 9660).
    """
    for outlook in c.speed:
        case = outlook.case
        if case is None or case.overlap == "none":
            continue
        overlapped, alone = saturated_rate(case), saturated_rate(replace(case, overlap="none"))
        if alone >= LEAST_GAIN * overlapped:
            rates = f"{overlapped:,.0f} instead of {alone:,.0f} tokens/s per GPU at full use"
            rule = f"W137 is predicted to be slower than overlap: none ({rates})"
            reason = (
                "two half batches compute less efficiently than one batch, and the overlap hides less time than that"
            )
            fix = Fix("write overlap: none", ({HERE: "none"},))
            yield Finding(f"{outlook.phase}.overlap", case.overlap, rule, reason, fix)


def _report_misses(c: Candidate, phase: Phase, found: Prediction) -> Iterator[Finding]:
    slo = c.resolved.written.slo
    for name, promised, each in (
        ("ttft", slo.ttft_ms, found.ttft_seconds),
        ("tpot", slo.tpot_ms, found.tpot_seconds),
    ):
        if promised is None or each is None or found.meets(each, promised):
            continue
        if name == "ttft" and found.is_saturated:
            yield _saturated(promised)
        else:
            reached = each.mid * MS_PER_S
            rule = f"W115 is missed by {phase}, whose {name.upper()} is predicted at {reached:,.1f} ms{_range(each)}"
            used = _offer_lower_utilisation(c.resolved, found, promised) if name == "ttft" else None
            lighter = None if phase in c.searched else _offer_lighter_load(c, found, name, promised)
            given = GIVEN_TURNS if (phase, name) == ("mixed", "ttft") else GIVEN[name]
            reason = CHOSEN if phase in c.searched else WAITING if used else given
            yield Finding(f"slo.{name}_ms", promised, rule, reason, _fix(ceil(reached), lighter, used))


def _range(mean: Estimate) -> str:
    """Return the range of a predicted mean latency as text, ` (LOW to HIGH)` in ms."""
    return f" ({mean.low * MS_PER_S:,.1f} to {mean.high * MS_PER_S:,.1f})"


def _saturated(promised: float) -> Finding:
    rule = "W115 is missed by prefill, whose prompts wait longer and longer at utilisation 1"
    reason = "at its full rate its queue grows without end, so there is no mean TTFT"
    path = "operating_point.prefill.utilisation"
    fix = removal(path, words=f"remove {path}, and prefill is as full as the promise allows")
    return Finding("slo.ttft_ms", promised, rule, reason, fix)


def _offer_lighter_load(c: Candidate, found: Prediction, name: str, promised: float) -> _Offer | None:
    """Return the offer of the heaviest load that keeps the promise (in ms); None if no load does."""
    path, loads = _lighter_loads(c.resolved, found)

    @cache
    def at(load: int) -> Prediction:
        tried = c.predict_with(found.phase, {path: load})
        assert tried is not None  # the phase's speed is known
        return tried

    def keeps(load: int) -> bool:
        mean = at(load).ttft_seconds if name == "ttft" else at(load).tpot_seconds
        assert mean is not None  # the phase promises it
        return at(load).meets(mean, promised)

    if found.phase == "prefill":  # the shortest steps may take longer: a prompt takes more of them
        kept = next((each for each in loads if keeps(each)), None)
    else:
        number = bisect_left(loads, True, key=keeps)
        kept = loads[number] if number < len(loads) else None
    if kept is None:
        return None
    times = found.tokens_per_s_per_gpu.mid / at(kept).tokens_per_s_per_gpu.mid
    return _Offer({path: kept}, f"{path} {kept}{_more_units_in_words(times)}")


def _lighter_loads(spec: ResolvedSpec, found: Prediction) -> tuple[str, Sequence[int]]:
    """Return (path of the field that sets a phase's load, values of lighter loads from the heaviest down)."""
    phase = found.phase
    if phase == "prefill":
        return shorter_steps(spec)
    is_written = getattr(spec.written.operating_point, phase) is not None
    path = f"operating_point.{phase}.requests" if is_written else f"{phase}.max_requests"
    return path, range(ceil(found.point.requests) - 1, 0, -1)


def _offer_lower_utilisation(spec: ResolvedSpec, found: Prediction, promised: float) -> _Offer | None:
    """Return the offer of the highest prefill utilisation that keeps the promised TTFT (in ms).

    Return None if that utilisation is too low to offer, if the phase is not prefill or fully used, or if the spec
    writes no operating point for it.
    """
    if found.phase != "prefill" or found.point.utilisation == 1 or spec.written.operating_point.prefill is None:
        return None
    used = highest_utilisation(found, promised)
    if used < MIN_OFFERED_UTILISATION:
        return None
    path = f"operating_point.{found.phase}.utilisation"
    return _Offer({path: used}, f"{path} {used:g}{_more_units_in_words(found.point.utilisation / used)}")


def _more_units_in_words(times: float) -> str:
    """Return words for how many times as many units the same tokens take at a lighter load; empty if about as many."""
    return f" (the same tokens then take {times:.3g} times as many units)" if times > MIN_UNITS_RATIO else ""


def _fix(reached: int, *offers: _Offer | None) -> Fix:
    """Return a fix that promises `reached`, the predicted latency in ms, or that changes the load as an offer says."""
    offered = [each for each in offers if each is not None]
    said = "".join(f", or {each.words}" for each in offered)
    return Fix(f"nearest: {reached}{said}", ({HERE: reached}, *(each.change for each in offered)))


RULES = (Rule("W115", "predicted", slo_is_kept), Rule("W137", "predicted", overlap_pays_off))

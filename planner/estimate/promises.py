"""Warnings about latencies that a spec promises under `slo` and that its plan is predicted to miss.

A plan with such a phase is still a plan: predictions have wide ranges, and a promise may be a wish. Where `auto` chose
the layout, it kept the promise by what was foreseen of the expert map. The plan predicts with the map itself.

Where the spec writes an operating point, lighter loads that keep the promise are offered beside a weaker promise: fewer
requests, shorter steps, units that are less full. Each is predicted, with the plan's maps, before it is said.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from math import ceil

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Prediction
from planner.estimate.utilisation import LEAST_OFFERED, highest_utilisation, shorter_steps
from planner.facts.terms import Phase
from planner.problems.errors import Problem, Violation
from planner.problems.fix import HERE, Change, Fix, removal
from planner.spec.check import ResolvedSpec

__all__ = ["missed_promises"]

Predicted = Callable[[Phase, Change], Prediction | None]  # of a phase, if the spec were changed so

MS_PER_S = 1e3
CHOSEN = "auto chose its layout before its expert map was known"
GIVEN = {
    "ttft": "prompts wait less in units that are less full, and are computed sooner in shorter steps",
    "tpot": "steps with fewer requests are shorter",
}
WAITING = "its units are so full that prompts wait longer for their turn"


def missed_promises(
    spec: ResolvedSpec, outlooks: Sequence[PhaseOutlook], searched: Collection[Phase], predicted: Predicted
) -> tuple[Problem, ...]:
    """Return a warning for each promised latency that a phase misses; speed chose the layouts of those `searched`."""
    return tuple(spec.problem(each) for outlook in outlooks for each in _missed(spec, outlook, searched, predicted))


def _missed(
    spec: ResolvedSpec, outlook: PhaseOutlook, searched: Collection[Phase], predicted: Predicted
) -> Iterator[Violation]:
    found, phase, slo = outlook.prediction, outlook.phase, spec.written.slo
    if found is None:
        return
    for name, promised, each in (
        ("ttft", slo.ttft_ms, found.ttft_seconds),
        ("tpot", slo.tpot_ms, found.tpot_seconds),
    ):
        if promised is None or each is None or found.keeps(each, promised):
            continue
        if name == "ttft" and found.waits_without_end:
            yield _saturated(promised)
        else:
            reached = each.mid * MS_PER_S
            rule = f"W115 is missed by {phase}, whose {name.upper()} is predicted at {reached:,.1f} ms"
            used = _less_full(spec, found, promised) if name == "ttft" else None
            offered = {} if phase in searched else _lighter(spec, found, name, promised, predicted)
            reason = CHOSEN if phase in searched else WAITING if used else GIVEN[name]
            yield Violation(f"slo.{name}_ms", promised, rule, reason, _fix(ceil(reached), offered, used))


def _saturated(promised: float) -> Violation:
    rule = "W115 is missed by prefill, whose prompts wait longer and longer at utilisation 1"
    reason = "whatever is asked for all that it makes has no mean TTFT"
    path = "operating_point.prefill.utilisation"
    fix = removal(path, words=f"remove {path}, and prefill is as full as the promise allows")
    return Violation("slo.ttft_ms", promised, rule, reason, fix)


def _lighter(spec: ResolvedSpec, found: Prediction, name: str, promised: float, predicted: Predicted) -> Change:
    """Return the lighter load of the written operating point that keeps a promise; empty where none does."""
    phase = found.phase
    if getattr(spec.written.operating_point, phase) is None or (name, phase) == ("ttft", "mixed"):
        return {}
    field = "step_tokens" if name == "ttft" else "requests"
    path = f"operating_point.{phase}.{field}"

    def breaks(load: int) -> bool:
        tried = predicted(phase, {path: load})
        assert tried is not None  # the phase's speed is known
        mean = tried.ttft_seconds if name == "ttft" else tried.tpot_seconds
        return mean is None or not tried.keeps(mean, promised)

    if field == "step_tokens":  # the shortest steps may take longer: a prompt takes more of them
        kept = next((each for each in shorter_steps(found.point.step_tokens) if not breaks(each)), 0)
    else:
        kept = bisect_left(range(1, int(found.point.requests)), True, key=breaks)
    return {path: kept} if kept else {}


def _less_full(spec: ResolvedSpec, found: Prediction, promised: float) -> Change | None:
    """Return a utilisation at which prompts wait so little that the TTFT is kept; None where no wait is so short."""
    if found.phase != "prefill" or found.point.utilisation == 1 or spec.written.operating_point.prefill is None:
        return None
    used = highest_utilisation(found, promised)
    return {f"operating_point.{found.phase}.utilisation": used} if used >= LEAST_OFFERED else None


def _fix(reached: int, lighter: Change, used: Change | None) -> Fix:
    """Offer what is reached, and loads at which the promise is kept."""
    said = "".join(f", or {path} {value:g}" for path, value in lighter.items())
    changes: list[Change] = [{HERE: reached}, *([lighter] if lighter else [])]
    if used is not None:
        said += "".join(f", or {path} {value:g}, at which units make fewer tokens" for path, value in used.items())
        changes.append(used)
    return Fix(f"nearest: {reached}{said}", tuple(changes))

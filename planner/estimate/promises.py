"""Warnings about latencies that a spec promises under `slo` and that its plan is predicted to miss.

A plan with such a phase is still a plan: predictions have wide ranges, and a promise may be a wish. Where `auto` chose
the layout, it kept the promise by what was foreseen of the expert map. The plan predicts with the map itself.
"""

from collections.abc import Collection, Iterator, Sequence
from math import ceil

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Prediction
from planner.estimate.utilisation import LEAST_OFFERED, follows_from_promise, highest_utilisation
from planner.facts.terms import Phase
from planner.problems.errors import Problem, Violation
from planner.problems.fix import HERE, Fix, nearest, removal
from planner.spec.check import ResolvedSpec

__all__ = ["missed_promises"]

MS_PER_S = 1e3
CHOSEN = "auto chose its layout before its expert map was known"
GIVEN = {
    "ttft": "prompts wait less in units that are less full, and are computed sooner in shorter steps",
    "tpot": "steps with fewer requests are shorter",
}
WAITING = "its units are so full that prompts wait longer for their turn"


def missed_promises(
    spec: ResolvedSpec, outlooks: Sequence[PhaseOutlook], searched: Collection[Phase]
) -> tuple[Problem, ...]:
    """Return a warning for each promised latency that a phase misses; speed chose the layouts of those `searched`."""
    return tuple(spec.problem(each) for outlook in outlooks for each in _missed(spec, outlook, searched))


def _missed(spec: ResolvedSpec, outlook: PhaseOutlook, searched: Collection[Phase]) -> Iterator[Violation]:
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
            is_given = name == "ttft" and not follows_from_promise(spec.written, phase)
            fix = _less_full(found, promised) if is_given else None
            reason = CHOSEN if phase in searched else WAITING if fix else GIVEN[name]
            yield Violation(f"slo.{name}_ms", promised, rule, reason, fix or nearest(ceil(reached)))


def _saturated(promised: float) -> Violation:
    rule = "W115 is missed by prefill, whose prompts wait longer and longer at utilisation 1"
    reason = "whatever is asked for all that it makes has no mean TTFT"
    path = "operating_point.prefill.utilisation"
    fix = removal(path, words=f"remove {path}, and prefill is as full as the promise allows")
    return Violation("slo.ttft_ms", promised, rule, reason, fix)


def _less_full(found: Prediction, promised: float) -> Fix | None:
    """Offer a utilisation at which prompts wait so little that the TTFT is kept; None where no wait is so short."""
    if found.phase != "prefill" or found.point.utilisation == 1 or found.ttft_seconds is None:
        return None
    used = highest_utilisation(found, promised)
    if used < LEAST_OFFERED:
        return None
    reached = ceil(found.ttft_seconds.mid * MS_PER_S)
    path = f"operating_point.{found.phase}.utilisation"
    words = f"nearest: {reached}, or {path} {used:g}, at which units make fewer tokens"
    return Fix(words, ({HERE: reached}, {path: used}))

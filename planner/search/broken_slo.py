"""Explain an SLO that no layout of a phase keeps, and offer a lighter load or a weaker promise.

Lighter loads are tried one series after another: offer the heaviest load at which some layout keeps the SLO.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil

from planner.estimate.utilisation import (
    MIN_OFFERED_UTILISATION,
    MIN_UTILISATION,
    SLO_MARGIN,
    is_set_by_ttft,
    shorter_steps,
)
from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.problems.fix import Change, nearest
from planner.search.ranked import AcceptedLayout, RejectedLayout
from planner.search.series import NumberSeries, Series, first_success, make_fix
from planner.spec.decision import is_auto
from planner.spec.request_lengths import describe_assumed_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import is_undecided

Outcomes = Sequence[AcceptedLayout | RejectedLayout]  # one for each layout of a phase

UTILISATION = "operating_point.prefill.utilisation"


def require_slo(
    spec: ResolvedSpec, found: Mapping[Phase, Outcomes], search_with: Callable[[Phase, Change], Outcomes]
) -> None:
    """Raise InfeasibleError if all layouts of a phase that fit break the SLO.

    `found` has the outcomes of each phase. `search_with` searches a phase's layouts again with a change of the
    spec, to find a load or promise to offer.
    """
    wrong = [
        spec.locate(finding)
        for phase, each in found.items()
        if _slo_misses(each) and not _keeps_slo(each)
        for finding in _findings(spec, phase, _slo_misses(each), search_with)
    ]
    if wrong:
        raise InfeasibleError(wrong)


def _findings(
    spec: ResolvedSpec, phase: Phase, broken: Sequence[RejectedLayout], search_with: Callable[[Phase, Change], Outcomes]
) -> Iterator[Finding]:
    """Yield a finding for each latency of the SLO that no layout of the phase keeps.

    `broken` are the layouts that fit but miss the SLO.
    """

    def keeps(change: Change) -> bool:
        return _keeps_slo(search_with(phase, change))

    lighter = next(filter(None, (first_success(series, keeps) for series in _lighter_loads(spec, phase))), None)
    for field in _missed_promises(spec, broken):
        yield _finding(spec, phase, field, broken, lighter)


def _lighter_loads(spec: ResolvedSpec, phase: Phase) -> Iterator[Series]:
    """Yield series of changes to lighter loads, which are fewer requests.

    In prefill they are a lower utilisation, then shorter steps.
    """
    if phase != "prefill":
        path, now = _predicted_requests(spec, phase)
        yield NumberSeries((path,), range((now or 1) - 1, 0, -1))
        return
    point = spec.written.operating_point.prefill
    used = (point.utilisation or MIN_UTILISATION) if point is not None else 0.0
    shares = range(ceil(100 * used) - 1, round(100 * MIN_OFFERED_UTILISATION) - 1, -1)
    yield NumberSeries((UTILISATION,), [share / 100 for share in shares])
    path, steps = shorter_steps(spec)
    yield [{path: each} for each in steps]


def _keeps_slo(found: Outcomes) -> bool:
    return any(isinstance(each, AcceptedLayout) for each in found)


def _slo_misses(found: Outcomes) -> list[RejectedLayout]:
    return [each for each in found if isinstance(each, RejectedLayout) and each.why == "slo"]


def _fastest(broken: Sequence[RejectedLayout], field: str) -> RejectedLayout:
    return min(broken, key=lambda lost: lost.reached[field])


def _least_promise(broken: Sequence[RejectedLayout], field: str) -> int:
    """Return the shortest latency, in whole ms, that some layout of `broken` keeps with the usual margin."""
    return max(ceil(_fastest(broken, field).reached[field] / SLO_MARGIN), 1)


def _missed_promises(spec: ResolvedSpec, broken: Sequence[RejectedLayout]) -> list[str]:
    """Return the SLO fields that no layout of `broken` keeps.

    If layouts keep each field, but none keeps all, return all fields.
    """
    promised = [field for field in ("ttft_ms", "tpot_ms") if getattr(spec.written.slo, field) is not None]
    known = [field for field in promised if field in broken[0].reached]
    missed = [
        field
        for field in known
        if _fastest(broken, field).reached[field] > SLO_MARGIN * getattr(spec.written.slo, field)
    ]
    return missed or known


def _predicted_requests(spec: ResolvedSpec, phase: Phase) -> tuple[str, int | None]:
    """Return (path, value) of the field that sets for how many requests `phase` is predicted.

    The value is None for auto.
    """
    point, section = getattr(spec.written.operating_point, phase), spec.phase(phase)
    if phase != "prefill" and point is not None and not is_undecided(point.requests):
        return f"operating_point.{phase}.requests", point.requests
    return f"{phase}.max_requests", None if is_auto(section, "max_requests") else section.max_requests


def _finding(
    spec: ResolvedSpec, phase: Phase, field: str, broken: Sequence[RejectedLayout], lighter: Change | None
) -> Finding:
    best, promised, least = _fastest(broken, field), f"slo.{field}", _least_promise(broken, field)
    beside = " under that load" if lighter else ""
    fastest, any_layout = f"EP{best.numbers['ep_size']}", str(phase)
    if is_auto(spec.phase(phase), "ep_size"):
        fastest, any_layout = f"the fastest layout, {fastest},", f"any layout of {phase}"
    rule = f"S727 must be at least {least} for {any_layout} to keep it{beside}"
    takes = f"{best.reached[field]:,.1f} ms{_load_in_words(spec, phase, field, best)}"
    reason = f"{fastest} takes {takes}, and {1 - SLO_MARGIN:.0%} is kept in reserve"
    reason += f", where auto {assuming}" if (assuming := describe_assumed_lengths(spec.written, phase)) else ""
    fix = make_fix((lighter, {promised: least}), spec) if lighter else nearest(least)
    return Finding(promised, getattr(spec.written.slo, field), rule, reason, fix)


def _load_in_words(spec: ResolvedSpec, phase: Phase, field: str, best: RejectedLayout) -> str:
    """Return words for the load of the layout `best`, such as ` with 64 requests per GPU`; empty if there are none."""
    if phase == "prefill":
        point = spec.written.operating_point.prefill
        if field == "ttft_ms" and is_set_by_ttft(spec.written, phase):
            return f" at {MIN_UTILISATION:.0%} utilisation, unless {UTILISATION} is lower"
        return "" if point is None or point.utilisation is None else f" at utilisation {point.utilisation:g}"
    path, number = _predicted_requests(spec, phase)
    is_said = path.startswith("operating_point.")
    requests = number if is_said and number else best.numbers["max_requests"]
    of_limit = f"max_requests, as operating_point.{phase} gives no number"
    origin = "" if is_said else f" ({of_limit})" if number else ", the fewest that max_requests: auto may become"
    return f" with {counted(requests, 'request')} per GPU{origin}"

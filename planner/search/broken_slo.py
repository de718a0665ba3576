"""Promises that all layouts of a phase break: the least that one of them keeps, and the load with which more is kept.

A promise is broken at the load that a spec writes. Before a weaker promise is asked for, lighter loads are searched:
the heaviest of them with which some layout keeps it or, where none does, the one that comes nearest to it.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

from planner.estimate.utilisation import KEPT, LEAST, LEAST_OFFERED, follows_from_promise, shorter_steps
from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.problems.fix import Change, nearest
from planner.search.decision import is_auto
from planner.search.relaxations import fix_of
from planner.search.trials import Kept, Lost
from planner.spec.request_lengths import assuming_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import is_undecided

__all__ = ["require_slo"]

Tried = Sequence[Kept | Lost]  # each layout of a phase

UTILISATION = "operating_point.prefill.utilisation"


def require_slo(spec: ResolvedSpec, found: Mapping[Phase, Tried], found_with: Callable[[Phase, Change], Tried]) -> None:
    """Raise InfeasibleError where all layouts of a phase that fit break the SLO.

    `found_with` returns what is found for a phase with a change of the spec.
    """
    wrong = []
    for phase, each in found.items():
        broken = _broken(each)
        if broken and not _is_kept(each):
            loads = _Loads(spec, phase, cache(lambda path, load, phase=phase: found_with(phase, {path: load})))
            lighter = loads.heaviest_that_keeps()
            wrong += [
                spec.locate(_finding(spec, phase, field, broken, lighter or loads.nearest(field)))
                for field in _missed(spec, broken)
            ]
    if wrong:
        raise InfeasibleError(wrong)


@dataclass(frozen=True)
class _Lighter:
    """A lighter load, and the promise that some layout keeps with it; None where that is the one that is written."""

    path: str
    load: float
    promise: int | None = None

    def change(self, promised: str) -> Change:
        """Return what is to be written, `promised` being the path of the promise."""
        return {self.path: self.load} | ({} if self.promise is None else {promised: self.promise})


@dataclass(frozen=True)
class _Loads:
    """Loads of a phase that are lighter than its own, and what is found with them."""

    spec: ResolvedSpec
    phase: Phase
    at: Callable[[str, float], Tried]

    def heaviest_that_keeps(self) -> _Lighter | None:
        """Return the most load with which some layout keeps the SLO; None where none does."""
        path, loads = self._ascending
        if loads and _is_kept(self.at(path, loads[0])):
            number = bisect_left(loads, True, lo=1, key=lambda load: not _is_kept(self.at(path, load)))
            return _Lighter(path, loads[number - 1])
        path, shorter = self._steps
        steps = next((each for each in shorter if _is_kept(self.at(path, each))), None)
        return None if steps is None else _Lighter(path, steps)

    def nearest(self, field: str) -> _Lighter | None:
        """Return the load with which some layout comes nearest to what `field` promises; None where none is lighter."""
        (path, loads), (of_steps, steps) = self._ascending, self._steps
        tried = [(path, load) for load in loads[:1]] + [(of_steps, each) for each in steps]
        reached = {(at, load): broken for at, load in tried if (broken := _broken(self.at(at, load)))}
        if not reached:
            return None
        at, load = min(reached, key=lambda each: _best(reached[each], field).reached[field])
        least = _least_promise(reached[at, load], field)
        return _Lighter(at, load, least if least > getattr(self.spec.written.slo, field) else None)

    @property
    def _ascending(self) -> tuple[str, Sequence[float]]:
        """Return the field that says how loaded the phase is, and lighter loads than its own, the lightest first."""
        if self.phase != "prefill":
            path, now = _requests(self.spec, self.phase)
            return path, range(1, now or 1)
        point = self.spec.written.operating_point.prefill
        used = (point.utilisation or LEAST) if point is not None else 0.0
        return UTILISATION, [share / 100 for share in range(round(100 * LEAST_OFFERED), ceil(100 * used))]

    @property
    def _steps(self) -> tuple[str, Sequence[int]]:
        """Return the field that says how long prefill's steps are, and shorter ones; none of other phases."""
        return shorter_steps(self.spec) if self.phase == "prefill" else ("", ())


def _is_kept(found: Tried) -> bool:
    return any(isinstance(each, Kept) for each in found)


def _broken(found: Tried) -> list[Lost]:
    return [each for each in found if isinstance(each, Lost) and each.why == "slo"]


def _best(broken: Sequence[Lost], field: str) -> Lost:
    return min(broken, key=lambda lost: lost.reached[field])


def _least_promise(broken: Sequence[Lost], field: str) -> int:
    """Return the least that may be promised for one of the layouts to keep it."""
    return max(ceil(_best(broken, field).reached[field] / KEPT), 1)


def _missed(spec: ResolvedSpec, broken: Sequence[Lost]) -> list[str]:
    """Return the fields that no layout keeps; all of them, where each is kept by some."""
    promised = [field for field in ("ttft_ms", "tpot_ms") if getattr(spec.written.slo, field) is not None]
    known = [field for field in promised if field in broken[0].reached]
    missed = [field for field in known if _best(broken, field).reached[field] > KEPT * getattr(spec.written.slo, field)]
    return missed or known


def _requests(spec: ResolvedSpec, phase: Phase) -> tuple[str, int | None]:
    """Return the field that says with how many requests `phase` is predicted, and the number; None where it is auto."""
    point, section = getattr(spec.written.operating_point, phase), spec.phase(phase)
    if phase != "prefill" and point is not None and not is_undecided(point.requests):
        return f"operating_point.{phase}.requests", point.requests
    return f"{phase}.max_requests", None if is_auto(section, "max_requests") else section.max_requests


def _finding(spec: ResolvedSpec, phase: Phase, field: str, broken: Sequence[Lost], lighter: _Lighter | None) -> Finding:
    best, promised, least = _best(broken, field), f"slo.{field}", _least_promise(broken, field)
    if lighter is not None and lighter.promise is not None and lighter.promise >= least:
        lighter = None
    is_of_steps = lighter is not None and lighter.path.endswith("_tokens")
    beside = " in steps as long as these" if is_of_steps else " under that load" if lighter else ""
    fastest, any_layout = f"EP{best.numbers['ep_size']}", str(phase)
    if is_auto(spec.phase(phase), "ep_size"):
        fastest, any_layout = f"the fastest layout, {fastest},", f"any layout of {phase}"
    rule = f"S727 must be at least {least} for {any_layout} to keep it{beside}"
    takes = f"{best.reached[field]:,.1f} ms{_load(spec, phase, field, best)}"
    reason = f"{fastest} takes {takes}, and {1 - KEPT:.0%} is kept in reserve"
    reason += f", where auto {assuming}" if (assuming := assuming_lengths(spec.written, phase)) else ""
    fix = fix_of((lighter.change(promised), {promised: least}), spec) if lighter else nearest(least)
    return Finding(promised, getattr(spec.written.slo, field), rule, reason, fix)


def _load(spec: ResolvedSpec, phase: Phase, field: str, best: Lost) -> str:
    """Return a part of a sentence: with which load a layout was tried."""
    if phase == "prefill":
        point = spec.written.operating_point.prefill
        if field == "ttft_ms" and follows_from_promise(spec.written, phase):
            return f" at {LEAST:.0%} utilisation, unless {UTILISATION} is lower"
        return "" if point is None or point.utilisation is None else f" at utilisation {point.utilisation:g}"
    path, number = _requests(spec, phase)
    is_said = path.startswith("operating_point.")
    requests = number if is_said and number else best.numbers["max_requests"]
    of_limit = f"max_requests, as operating_point.{phase} gives no number"
    origin = "" if is_said else f" ({of_limit})" if number else ", the fewest that max_requests: auto may become"
    return f" with {counted(requests, 'request')} per GPU{origin}"

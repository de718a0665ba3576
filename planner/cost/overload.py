"""Warnings about a day's traffic that asks units for more than they make.

A latency is predicted at an operating point. Where a day asks for more than the units that are on make there,
requests wait or are refused, whatever `slo` promises. The plan is still a plan: a user may know that the profile is a
wish.
"""

from collections.abc import Iterator, Sequence

from planner.cost.demand import PhaseLoad
from planner.facts.terms import Phase
from planner.problems.errors import Problem, Violation
from planner.spec.check import ResolvedSpec

__all__ = ["overloads"]

PROMISES: dict[Phase, tuple[str, ...]] = {"prefill": ("ttft",), "decode": ("tpot",), "mixed": ("ttft", "tpot")}
ROUNDED = 0.005  # loads are told in whole per cent


def overloads(spec: ResolvedSpec, demand: Sequence[PhaseLoad]) -> tuple[Problem, ...]:
    """Return warnings for each phase that is asked for more than it makes: one for each latency that it promises."""
    return tuple(spec.problem(each) for load in demand if load.load >= 1 + ROUNDED for each in _overload(spec, load))


def _overload(spec: ResolvedSpec, load: PhaseLoad) -> Iterator[Violation]:
    asked = f"{load.load:.0%} of what those units make" if load.served_per_s else "more than none"
    if load.hours_over:
        asked += f", and for too much in {load.hours_over:.3g} hours of that day"
    units = f"the {load.phase} units that are on at {load.at}{f' on {load.day}' if load.day else ''}"
    reason = "requests wait then, or are refused; costs and income still count all of the traffic as answered"
    if not load.served_per_s:
        reason = "requests are refused then, and income counts none of them"
    fix = "let more units be on at that time"
    if spec.has_windows_of_traffic and f"{load.phase}.units" not in spec.document.autos:
        fix = f"write {load.phase}.units: auto, for as many as the traffic asks for"
    fix += "; tidemill simulate says who waits for how long"
    promises = {name: getattr(spec.written.slo, f"{name}_ms") for name in PROMISES[load.phase]}
    for name, promised in promises.items():
        if promised is not None:
            rule = f"W126 is not kept, since traffic asks {units} for {asked}"
            yield Violation(f"slo.{name}_ms", promised, rule, reason, fix)
    if not any(promises.values()):
        yield Violation("traffic", None, f"W138 asks {units} for {asked}", reason, fix)

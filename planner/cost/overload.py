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
    time = f"{load.at}{f' on {load.day}' if load.day else ''}"
    asked = f"asks for {load.load:.0%} of the tokens that the {load.phase} units serve at {time}"
    reason = "requests then wait or are refused, but costs and income still count all of the traffic as answered"
    if not load.served_per_s:
        asked = f"asks for tokens at {time}, when no {load.phase} units are on"
        reason = "requests are refused then, and income counts none of them"
    if load.hours_over:
        asked += f", and for more than they serve during {load.hours_over:.3g} h of that day"
    fix = f"turn on more {load.phase} units at that time"
    if spec.has_windows_of_traffic and f"{load.phase}.units" not in spec.document.autos:
        fix = f"write {load.phase}.units: auto, for as many as the traffic asks for"
    fix += " (tidemill simulate shows how long requests wait)"
    promises = {name: getattr(spec.written.slo, f"{name}_ms") for name in PROMISES[load.phase]}
    for name, promised in promises.items():
        if promised is not None:
            rule = f"W126 is not kept, because traffic {asked}"
            yield Violation(f"slo.{name}_ms", promised, rule, reason, fix)
    if not any(promises.values()):
        yield Violation("traffic", None, f"W138 {asked}", reason, fix)

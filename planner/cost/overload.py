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

__all__ = ["SEE_SIMULATE", "overloads"]

PROMISES: dict[Phase, tuple[str, ...]] = {"prefill": ("ttft",), "decode": ("tpot",), "mixed": ("ttft", "tpot")}
SEE_SIMULATE = " (tidemill simulate shows how long requests wait)"
ROUNDED = 0.005  # loads are told in whole per cent


def overloads(spec: ResolvedSpec, demand: Sequence[PhaseLoad]) -> tuple[Problem, ...]:
    """Return warnings for each phase that is asked for more than it makes: one for each latency that it promises."""
    return tuple(spec.problem(each) for load in demand if load.load >= 1 + ROUNDED for each in _overload(spec, load))


def _overload(spec: ResolvedSpec, load: PhaseLoad) -> Iterator[Violation]:
    time = f"{load.at}{f' on {load.day}' if load.day else ''}"
    units = f"{load.phase} units"
    if load.served_per_s:
        in_time = " in time" if load.phase == "prefill" and spec.written.slo.ttft_ms is not None else ""
        asked = f"asks for {load.load:.0%} of the tokens that the {units} serve{in_time} at {time}"
        over = f", and for more than they serve during {load.hours_over:.3g} h of that day"
        reason = "requests then wait or are refused, but costs and income still count all of the traffic as answered"
    else:
        asked = f"asks for tokens at {time}, when no {load.phase} unit is on"
        over = f", and for more than the {units} that are on serve during {load.hours_over:.3g} h of that day in all"
        reason = "requests are refused while no unit is on, and income counts none of them"
    asked += over if load.hours_over else ""
    fix = f"{_fix(spec, load)}{SEE_SIMULATE}"
    promises = {name: getattr(spec.written.slo, f"{name}_ms") for name in PROMISES[load.phase]}
    for name, promised in promises.items():
        if promised is not None:
            rule = f"W126 is not kept, because traffic {asked}"
            yield Violation(f"slo.{name}_ms", promised, rule, reason, fix)
    if not any(promises.values()):
        yield Violation("traffic", None, f"W138 {asked}", reason, fix)


def _fix(spec: ResolvedSpec, load: PhaseLoad) -> str:
    """Say how more units come to be on at the fullest time."""
    units = f"{load.phase}.units"
    if spec.has_windows_of_traffic and units not in spec.document.autos:
        return f"write {units}: auto, for as many as the traffic asks for"
    if load.are_all_on:
        return f"all {load.phase} units are on then: plan more of them, and more cluster.nodes unless some are free"
    return f"turn on more {load.phase} units at that time"

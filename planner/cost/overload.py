"""Warnings about latencies that a spec promises under `slo` and that a day's traffic leaves no room for.

A latency is predicted at an operating point. Where the day asks for more than the units that are on make there,
requests wait or are refused, whatever the point promises. The plan is still a plan: a user may know that the profile is
a wish.
"""

from collections.abc import Iterator, Sequence

from planner.cost.demand import PhaseLoad
from planner.facts.terms import Phase
from planner.problems.errors import Problem, Violation
from planner.spec.check import ResolvedSpec

__all__ = ["broken_promises"]

PROMISES: dict[Phase, tuple[str, ...]] = {"prefill": ("ttft",), "decode": ("tpot",), "mixed": ("ttft", "tpot")}
ROUNDED = 0.005  # loads are told in whole per cent


def broken_promises(spec: ResolvedSpec, demand: Sequence[PhaseLoad]) -> tuple[Problem, ...]:
    """Return a warning for each latency that is promised of a phase which is asked for more than it makes."""
    return tuple(spec.problem(each) for load in demand for each in _broken(spec, load))


def _broken(spec: ResolvedSpec, load: PhaseLoad) -> Iterator[Violation]:
    if load.load < 1 + ROUNDED:
        return
    for name in PROMISES[load.phase]:
        promised = getattr(spec.written.slo, f"{name}_ms")
        if promised is not None:
            asked = f"{load.load:.0%} of what those units make" if load.served_per_s else "more than none"
            rule = f"W126 is not kept at {load.at}, when traffic asks the {load.phase} units that are on for {asked}"
            reason = "requests wait then, or are refused; costs and income still count all of the traffic as answered"
            fix = "let more units be on at that time; tidemill simulate says who waits for how long"
            yield Violation(f"slo.{name}_ms", promised, rule, reason, fix)

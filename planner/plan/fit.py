"""What `validate` says of a spec: whether it fits, wherever its units go.

It asks a candidate for nothing that takes a placement or maps, so that who only validates waits for neither.
"""

from dataclasses import dataclass

from planner.candidate.candidate import Candidate
from planner.problems.finding import Finding
from planner.rules.table import refusals_of
from planner.search.auto import decide
from planner.search.repair import offer_changes, require_feasible
from planner.spec.resolved import ResolvedSpec

__all__ = ["Fit", "check_fit"]


@dataclass(frozen=True)
class Fit:
    """What is known of a spec that fits into memory, before its units are placed."""

    left_to_plan: tuple[Finding, ...]  # what a placement refuses, or may refuse
    left_to_render: tuple[Finding, ...]  # what its engine cannot run: it plans, and `render` and `up` refuse it
    warnings: tuple[Finding, ...]


def check_fit(spec: ResolvedSpec) -> Fit:
    """Say what a placement of `spec` refuses, or may refuse, and what is to be warned of; it plans nothing.

    Raises InfeasibleError when the memory of its GPUs does not hold it, wherever units go.
    """
    candidate = Candidate.of(decide(spec).spec).at("laid out")
    require_feasible(candidate, "laid out", spec)
    left = offer_changes(refusals_of(candidate, "placed"), candidate, spec)
    return Fit(tuple(left), candidate.refusals, candidate.warnings)

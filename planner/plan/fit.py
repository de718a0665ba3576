"""What `validate` says of a spec: whether it fits, wherever its units go.

It asks a candidate for nothing that takes a placement or maps, so that who only validates waits for neither.
"""

from dataclasses import dataclass

from planner.candidate.candidate import Candidate
from planner.estimate.coverage import failure_domains, require_coverage, unknown_before_placement
from planner.estimate.points import require_points_fit
from planner.layout.memory import require_memory
from planner.placement.enough import check_room
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.rules.table import found_in, warnings_of
from planner.search.auto import decide
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
    candidate = Candidate.of(decide(spec).spec)
    spec, layouts = candidate.resolved, candidate.layouts
    try:
        require_memory(spec, candidate.memory)
        require_coverage(spec, layouts, failure_domains(spec, layouts))
    except InfeasibleError as error:
        raise _with_changes(error, candidate) from None
    require_points_fit(spec, candidate.memory)
    try:
        check_room(spec, layouts)
    except InfeasibleError as error:
        left = _with_changes(error, candidate).findings
    else:
        left = tuple(spec.locate(finding) for finding in unknown_before_placement(spec))
    refusals = found_in(candidate, "rendered")
    return Fit(left, refusals, warnings_of(candidate, is_runnable=not refusals))


def _with_changes(error: InfeasibleError, candidate: Candidate) -> InfeasibleError:
    from planner.search.repair import with_changes  # imported late: most specs need no fix

    return with_changes(error, candidate)

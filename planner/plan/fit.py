"""Check whether a spec fits into memory, before any placement. `validate` runs this check.

`validate` must not wait for a placement or an expert map, so this check needs neither.
"""

from dataclasses import dataclass

from planner.candidate.candidate import Candidate
from planner.problems.finding import Finding
from planner.rules.table import refusals_of
from planner.search.auto import decide
from planner.search.repair import offer_changes, require_feasible
from planner.spec.resolved import ResolvedSpec


@dataclass(frozen=True)
class Fit:
    """Findings about a spec that fits into memory: what `plan` or `render` may still refuse, and warnings."""

    left_to_plan: tuple[Finding, ...]  # reasons why `plan` will or may refuse the spec once units are placed
    left_to_render: tuple[Finding, ...]  # the engine cannot run these: `render` and `up` will refuse the plan
    warnings: tuple[Finding, ...]


def check_fit(spec: ResolvedSpec) -> Fit:
    """Return why `plan` will or may refuse `spec`, why the spec's engine cannot run it, and warnings about it.

    Raises InfeasibleError if the GPUs' memory cannot hold the spec in any placement.
    """
    candidate = Candidate.of(decide(spec).spec).at("laid out")
    require_feasible(candidate, "laid out", spec)
    left = offer_changes(refusals_of(candidate, "placed"), candidate, spec)
    return Fit(tuple(left), candidate.refusals, candidate.warnings)

"""Spec in, plan out: the passes, top to bottom. The only file that knows their order; estimates come last, and are made
in `plan/estimated.py`.

Pure: no network, no clock, no unseeded randomness. The same spec gives the same bytes on any machine.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from planner.candidate.candidate import Candidate
from planner.plan.compiled import Compiled, Grounds
from planner.plan.given import read_given
from planner.plan.launch import launch_documents
from planner.plan.loaded import read_plan
from planner.plan.plan import Plan
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.rules.table import found_in, warnings_of
from planner.search.auto import Decided, decide
from planner.search.repair import require_feasible
from planner.spec.resolved import ResolvedSpec

if TYPE_CHECKING:
    from planner.estimate.throughput.calibration import Calibration
    from planner.plan.estimated import Estimated

__all__ = ["compile_plan", "plan_from", "run_passes"]


def compile_plan(spec: ResolvedSpec, previous: Plan | None = None, calibration: "Calibration | None" = None) -> Plan:
    """Return the plan for `spec`, near the `previous` one: units stay where they were, and few slots of maps change.

    Predictions are corrected by `calibration`, a user's own measurements.

    Raises InfeasibleError, with changes that would do, when it cannot be had.
    """
    return run_passes(spec, previous, calibration).plan


def run_passes(
    spec: ResolvedSpec, previous: Plan | None = None, calibration: "Calibration | None" = None
) -> "Estimated":
    """Return what the passes find for `spec`, as `compile_plan` has it, for whoever asks further than the plan."""
    from planner.plan.estimated import with_estimates  # imported late: `render` and `up` need none of it
    from planner.report.rows import rows_of

    choice, candidate = _chosen(spec, previous, calibration)
    return with_estimates(_decided(choice, candidate), candidate, rows_of)


def plan_from(path: Path, previous: Path | None = None) -> Plan:
    """Return the plan in the file at `path`, or what the spec there becomes near the `previous` plan.

    What is only expected of a spec's plan is left out. Raises SpecError, CallError or InfeasibleError when there is
    none.
    """
    given = read_given(path)
    if not isinstance(given, ResolvedSpec):
        if previous is not None:
            rule, reason = "S911 needs a spec, not a plan", f"{path} is a finished plan and is not planned again"
            finding = Finding("--previous", str(previous), rule, reason, "leave it out, or give the spec")
            raise CallError([finding.at("tidemill")])
        return given
    return _decided(*_chosen(given, read_plan(previous) if previous else None)).plan


def _chosen(
    spec: ResolvedSpec, previous: Plan | None, calibration: "Calibration | None" = None
) -> tuple[Decided, Candidate]:
    """Return the numbers that `spec` leaves to the planner, and the candidate that has them."""
    choice = decide(spec)
    return choice, Candidate.of(choice.spec, previous, calibration)


def _decided(choice: Decided, candidate: Candidate) -> Compiled:
    """All that can be refused, and all that is carried out; and what it was decided by."""
    require_feasible(candidate, "mapped", choice.asked)
    spec, refusals = candidate.resolved, found_in(candidate, "rendered")
    return Compiled(
        choice=choice,
        grounds=Grounds(candidate.loads, candidate.places),
        layouts=candidate.layouts,
        memory=candidate.memory,
        placement=candidate.placement,
        schedule=candidate.schedule,
        expert_maps=candidate.maps,
        launch_documents=launch_documents(
            spec, candidate.placement, candidate.maps, candidate.memory, is_runnable=not refusals
        ),
        refusals=refusals,
        warnings=warnings_of(candidate, is_runnable=not refusals),
    )

"""Whether a spec fits, wherever its units go: what `validate` says, and the passes before a placement.

`compiler.py` goes on from there. Who only validates imports neither placement nor maps.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.cluster.inventory import nodes_for
from planner.estimate.coverage import failure_domains, require_coverage, unknown_before_placement
from planner.estimate.points import require_points_fit
from planner.estimate.warnings import warnings_of
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import MemoryPlan, fit_memory, split_memory
from planner.placement.enough import check_room
from planner.plan.runnable import runtime_refusals
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.schedule.starts import start_times
from planner.search.auto import decide
from planner.search.starts import require_ready
from planner.spec.check import ResolvedSpec

__all__ = ["Fit", "check_fit", "fit", "layout_of", "memory_of", "with_fixes"]


@dataclass(frozen=True)
class Fit:
    """What is known of a spec that fits into memory, before its units are placed."""

    layouts: tuple[PhaseLayout, ...]
    memory: tuple[MemoryPlan, ...]
    left_to_plan: tuple[Finding, ...]  # what a placement refuses, or may refuse
    left_to_render: tuple[Finding, ...]  # what its engine cannot run: it plans, and `render` and `up` refuse it
    warnings: tuple[Finding, ...]


def check_fit(spec: ResolvedSpec) -> Fit:
    """Say what a placement of `spec` refuses, or may refuse, and what is to be warned of; it plans nothing.

    Raises InfeasibleError when the memory of its GPUs does not hold it, wherever units go.
    """
    spec = decide(spec, memory_of, layout_of).spec
    try:
        layouts, memory = fit(spec)
        require_coverage(spec, layouts, failure_domains(spec, layouts))
    except InfeasibleError as error:
        raise with_fixes(error, spec) from None
    require_points_fit(spec, memory)
    try:
        check_room(spec, layouts)
    except InfeasibleError as error:
        left = with_fixes(error, spec).findings
    else:
        left = tuple(spec.locate(finding) for finding in unknown_before_placement(spec))
    refusals = runtime_refusals(spec, memory_of)
    return Fit(layouts, memory, left, refusals, warnings_of(spec, memory, memory_of, is_runnable=not refusals))


def fit(spec: ResolvedSpec) -> tuple[tuple[PhaseLayout, ...], tuple[MemoryPlan, ...]]:
    """Return the shape and the memory of each phase. Raises InfeasibleError when memory does not hold it."""
    layouts = tuple(layout_of(spec, phase) for phase in spec.phases)
    return layouts, fit_memory(spec, layouts)


def layout_of(spec: ResolvedSpec, phase: Phase) -> PhaseLayout:
    """One phase's shape, whether or not it fits."""
    return lay_out(phase, spec.written, spec.model)


def memory_of(spec: ResolvedSpec, phase: Phase) -> MemoryPlan | None:
    """One phase's memory, fitting or not; None where nobody knows how much there is."""
    return split_memory(spec, layout_of(spec, phase)) if spec.gpu_of(phase).usable_bytes else None


def with_fixes(error: InfeasibleError, spec: ResolvedSpec) -> InfeasibleError:
    """Return `error` with changes of `spec` that would do."""
    from planner.search.repair import with_changes  # imported late: most specs need no fix

    return with_changes(error, spec, _is_feasible, memory_of)


def _is_feasible(spec: ResolvedSpec) -> bool:
    """The passes that can say no; none after them does.

    A unit that fits into a rack is not tried with `coverage: rack`, since it would most likely stand in one: where
    units stand takes a placement, which takes seconds for a large system.
    """
    from planner.placement.place import place_units

    try:
        layouts, memory = fit(spec)
        check_room(spec, layouts)
        _require_the_rest(spec, layouts, memory)
        if spec.written.coverage == "rack" and _fits_a_rack(spec, layouts):
            return False
        units = place_units(spec, layouts).units if spec.written.coverage == "rack" else ()
        require_coverage(spec, layouts, failure_domains(spec, layouts, units))
    except InfeasibleError:
        return False
    return True


def _require_the_rest(spec: ResolvedSpec, layouts: Sequence[PhaseLayout], memory: Sequence[MemoryPlan]) -> None:
    """Raise InfeasibleError where `spec` would be refused later: for its operating points, or its starts.

    What the planner decided of them it would decide anew.
    """
    autos, schedule = spec.document.autos, spec.written.schedule
    require_points_fit(spec, [each for each in memory if f"operating_point.{each.phase}.requests" not in autos])
    if schedule is not None and "schedule.warm_up" not in autos:
        require_ready(spec, schedule, start_times(spec, layouts, memory))


def _fits_a_rack(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> bool:
    cluster = spec.cluster
    largest = cluster.rack_size or max(Counter(node.rack for node in nodes_for(spec) if not node.unusable).values())
    return min(each.nodes_per_unit for each in layouts) <= largest

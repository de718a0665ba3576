"""Spec in, plan out: the passes, top to bottom. The only file that knows their order; estimates come last, and are made
in `plan/estimated.py`.

Pure: no network, no clock, no unseeded randomness. The same spec gives the same bytes on any machine.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from planner.estimate.coverage import MeanOf, failure_domains, require_coverage, require_covered
from planner.estimate.expert_loads import expert_loads
from planner.estimate.points import require_points_fit
from planner.estimate.warnings import warnings_of
from planner.expert_map import Domains, ExpertMap, balance, slots_bind
from planner.facts.terms import Phase
from planner.layout.dispatch import gate_of, groups_on_nodes, split_of
from planner.layout.layout import PhaseLayout
from planner.placement.place import place_units
from planner.plan.compiled import Compiled, Grounds
from planner.plan.fit import fit, layout_of, memory_of, with_fixes
from planner.plan.given import read_given
from planner.plan.launch import launch_documents
from planner.plan.loaded import read_plan
from planner.plan.plan import Plan
from planner.plan.runnable import runtime_refusals
from planner.problems.errors import CallError, InfeasibleError
from planner.problems.finding import Finding
from planner.schedule.schedule import plan_schedule
from planner.schedule.starts import start_times
from planner.search.auto import Decided, decide
from planner.spec.check import ResolvedSpec

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

    decided = _decided(decide(spec, memory_of, layout_of), previous)
    return with_estimates(decided, _one_more_slot(decided), calibration, rows_of)


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
    return _decided(decide(given, memory_of, layout_of), read_plan(previous) if previous else None).plan


def _decided(choice: Decided, previous: Plan | None) -> Compiled:
    """All that can be refused, and all that is carried out; and what it was decided by."""
    spec = choice.spec
    try:
        layouts, memory = fit(spec)
        placement = place_units(spec, layouts, _nodes_in(previous))
        grounds = Grounds(expert_loads(spec), failure_domains(spec, layouts, placement.units))
        require_coverage(spec, layouts, grounds.places, _mean_of(spec, grounds))
    except InfeasibleError as error:
        raise with_fixes(error, spec) from None
    require_points_fit(spec, memory)
    schedule = plan_schedule(spec.written, placement.units, start_times(spec, layouts, memory))
    maps = {each.phase: _map_near(previous, spec, each, grounds) for each in layouts}
    require_covered(spec, maps)
    refusals = runtime_refusals(spec, memory_of)
    return Compiled(
        choice=choice,
        grounds=grounds,
        layouts=layouts,
        memory=memory,
        placement=placement,
        schedule=schedule,
        expert_maps=maps,
        launch_documents=launch_documents(spec, placement, maps, memory, is_runnable=not refusals),
        refusals=refusals,
        warnings=warnings_of(spec, memory, memory_of, is_runnable=not refusals),
    )


def _nodes_in(previous: Plan | None) -> dict[str, Sequence[str]]:
    """The nodes of the previous plan's units, by name."""
    return {unit.name: unit.nodes for unit in previous.units} if previous else {}


def _one_more_slot(decided: Compiled) -> dict[Phase, ExpertMap]:
    """The maps with one more slot a GPU, of the phases whose slots bind."""
    return {
        each.phase: _map_for(decided.resolved, each, decided.grounds, more_slots=each.ep_size)
        for each in decided.layouts
        if slots_bind(decided.expert_maps[each.phase]) and each.slots_per_gpu < each.num_logical_experts
    }


def _map_near(previous: Plan | None, spec: ResolvedSpec, layout: PhaseLayout, grounds: Grounds) -> ExpertMap:
    """Balance the experts of a phase near the map that the `previous` plan has for it, if it has one."""
    return _map_for(spec, layout, grounds, previous=previous.rows_for(layout, len(grounds.loads)) if previous else None)


def _map_for(
    spec: ResolvedSpec,
    layout: PhaseLayout,
    grounds: Grounds,
    *,
    more_slots: int = 0,
    previous: Sequence[Sequence[int]] | None = None,
    domains: Domains | None = None,
) -> ExpertMap:
    """Balance the experts of a phase, near the `previous` map where there is one, and in no other `domains`."""
    num_groups = groups_on_nodes(spec.model, spec.gpu_of(layout.phase), spec.cluster.gpus_per_node, layout)
    split = split_of(spec.written, layout)
    return balance(
        grounds.loads,
        layout.num_physical_experts + more_slots,
        layout.ep_size,
        num_nodes=layout.nodes_per_unit,
        num_groups=num_groups if split == "equal" else 1,  # only equal shares are weighed against bytes
        gate=gate_of(spec.model, layout.precision),
        previous=previous,
        domains=grounds.places[layout.phase].of(spec.written.coverage) if domains is None else domains,
        split=split,
    )


def _mean_of(spec: ResolvedSpec, grounds: Grounds) -> MeanOf:
    """What a plan would say of the balance with other slots and domains."""

    def mean_of(layout: PhaseLayout, slots_per_gpu: int, domains: Domains) -> float:
        more_slots = (slots_per_gpu - layout.slots_per_gpu) * layout.ep_size
        return fmean(_map_for(spec, layout, grounds, more_slots=more_slots, domains=domains).max_over_mean)

    return mean_of

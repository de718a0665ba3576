"""Spec in, plan out: the passes, top to bottom. The only file that knows their order.

Pure: no network, no clock, no unseeded randomness. The same spec gives the same bytes on any machine.
"""

from planner.check import CheckedSpec
from planner.errors import InfeasibleError
from planner.expert_map import Loads, balance, draw_loads
from planner.launch import launch_documents
from planner.memory import MemoryPlan, fit_memory
from planner.parallelism import PhaseLayout, lay_out
from planner.placement import place_units
from planner.plan import Plan
from planner.repair import with_changes
from planner.runnable import runtime_refusals

__all__ = ["check_fit", "compile_plan"]


def compile_plan(spec: CheckedSpec) -> Plan:
    """The plan for `spec`. Raises InfeasibleError, with changes that would do, when it cannot be had."""
    try:
        layouts, memory = _fit(spec)
        units = place_units(spec, layouts)
    except InfeasibleError as error:
        raise with_changes(error, spec, _is_feasible) from None
    loads = _expert_loads(spec)
    maps = {layout.phase: balance(loads, layout.num_physical_experts, layout.ep_size) for layout in layouts}
    documents = launch_documents(spec, units, maps)
    return Plan(spec.spec, layouts, memory, units, maps, documents, runtime_refusals(spec))


def check_fit(spec: CheckedSpec) -> None:
    """Whether the memory of `spec`'s GPUs holds it, wherever its units go. Raises InfeasibleError when it does not."""
    try:
        _fit(spec)
    except InfeasibleError as error:
        raise with_changes(error, spec, _is_feasible) from None


def _fit(spec: CheckedSpec) -> tuple[tuple[PhaseLayout, ...], tuple[MemoryPlan, ...]]:
    layouts = tuple(lay_out(phase, spec.spec.phase(phase), spec.spec.cluster, spec.model) for phase in spec.spec.phases)
    return layouts, fit_memory(spec, layouts)


def _is_feasible(spec: CheckedSpec) -> bool:
    """The passes that can say no; none after them does."""
    try:
        layouts, _ = _fit(spec)
        place_units(spec, layouts)
    except InfeasibleError:
        return False
    return True


def _expert_loads(spec: CheckedSpec) -> Loads:
    """As measured, else as drawn."""
    if spec.measured_loads is not None:
        return spec.measured_loads
    drawn = spec.spec.expert_load
    return draw_loads(drawn.alpha, drawn.seed, spec.model.num_moe_layers, spec.model.num_routed_experts)

"""Spec in, plan out: the passes, top to bottom. The only file that knows their order.

Pure: no network, no clock, no unseeded randomness. The same spec gives the same bytes on any machine.
"""

from planner.check import CheckedSpec
from planner.expert_map import Loads, balance, draw_loads
from planner.launch import launch_documents
from planner.parallelism import lay_out
from planner.placement import place_units
from planner.plan import Plan
from planner.runnable import runtime_refusals
from planner.spec import PHASES

__all__ = ["compile_plan"]


def compile_plan(spec: CheckedSpec) -> Plan:
    """The plan for `spec`. Raises InfeasibleError when the cluster cannot hold it."""
    layouts = tuple(lay_out(phase, spec.spec.phase(phase), spec.spec.cluster, spec.model) for phase in PHASES)
    units = place_units(spec, layouts)
    loads = _expert_loads(spec)
    maps = {layout.phase: balance(loads, layout.num_physical_experts, layout.ep_size) for layout in layouts}
    documents = launch_documents(spec, units, maps)
    return Plan(spec.spec, layouts, units, maps, documents, runtime_refusals(spec))


def _expert_loads(spec: CheckedSpec) -> Loads:
    """As measured, else as drawn."""
    if spec.measured_loads is not None:
        return spec.measured_loads
    drawn = spec.spec.expert_load
    return draw_loads(drawn.alpha, drawn.seed, spec.model.num_moe_layers, spec.model.num_routed_experts)

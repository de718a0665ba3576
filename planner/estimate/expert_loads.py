"""The load of each expert: measured, or else drawn from a distribution."""

from planner.facts.drawn import draw_loads
from planner.facts.loads import Loads
from planner.spec.resolved import ResolvedSpec

__all__ = ["expert_loads"]


def expert_loads(spec: ResolvedSpec) -> Loads:
    """Return the loads in `expert_load.file`, or loads drawn with its alpha and seed."""
    if spec.measured_loads is not None:
        return spec.measured_loads
    drawn, model = spec.written.expert_load, spec.model
    return draw_loads(drawn.alpha, drawn.seed, model.num_moe_layers, model.num_routed_experts, model.num_expert_groups)

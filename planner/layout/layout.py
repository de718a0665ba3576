"""The layout of one phase over the GPUs of a unit.

Glossary, with DeepSeek's decode unit as the worked example:
    EP size             GPUs over which the routed experts are spread                 144
    attention TP        GPUs that share each request's attention, by heads            1
    DP size             groups that each own their requests: EP size / attention TP   144
    logical experts     what the gate chooses among                                   256
    redundant experts   further slots, for replicas of hot experts                    32
    physical experts    logical + redundant: all slots of the unit, one layer         288
    slots per GPU       physical / EP size                                            2, and 1 shared expert

The invariant: slots_per_gpu x ep_size == num_physical_experts, and ranks_per_node x nodes_per_unit == ep_size.

The spec chooses the layout, and `rules/phases.py` rejects impossible ones.

Source of the example: DeepSeek open-infra-index, day 6.
"""

from dataclasses import dataclass

from planner.facts.terms import Overlap, Phase, Precision
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec


@dataclass(frozen=True)
class PhaseLayout:
    """The shape that all units of a phase share."""

    phase: Phase
    num_units: int
    ep_size: int
    attention_tp: int
    nodes_per_unit: int
    num_logical_experts: int
    num_physical_experts: int
    shared_per_gpu: int
    overlap: Overlap
    precision: Precision
    gpu: str  # type of GPU, by the name that plans use

    @property
    def dp_size(self) -> int:
        """The number of attention groups. Each group of ranks owns its requests, so attention is data-parallel."""
        return self.ep_size // self.attention_tp

    @property
    def dense_tp(self) -> int:
        """The TP degree of dense layers, shared experts and embeddings.

        If the unit is one attention group, all its GPUs share these weights. If it has several groups, the degree is 1:
        each GPU computes its own tokens, so it needs the weights whole. Source: github.com/sgl-project/sglang 00114aef
        python/sglang/srt/models/deepseek_v2.py (`enable_tp`).
        """
        return self.ep_size if self.dp_size == 1 else 1

    @property
    def slots_per_gpu(self) -> int:
        """The number of physical routed experts on one GPU, in each MoE layer."""
        return self.num_physical_experts // self.ep_size

    @property
    def routed_per_gpu(self) -> int:
        """The same as `slots_per_gpu`, under the name that plans use beside `shared_per_gpu`."""
        return self.slots_per_gpu

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on a node, one per GPU. A unit smaller than a node leaves the node's other GPUs idle."""
        return self.ep_size // self.nodes_per_unit


def lay_out(spec: ResolvedSpec, phase: Phase) -> PhaseLayout:
    """Return the layout of `phase` that `spec` asks for, whether or not it fits into memory."""
    return layout_of(spec.written, phase, spec.model.num_routed_experts, spec.model.num_shared_experts)


def layout_of(spec: Spec, phase: Phase, num_routed_experts: int, num_shared_experts: int) -> PhaseLayout:
    """Return the layout of `phase`. Of the model it needs only the numbers of experts, which a saved plan has too."""
    section = spec.phase(phase)
    return PhaseLayout(
        phase=phase,
        num_units=spec.num_units(phase),
        ep_size=section.ep_size,
        attention_tp=section.attention_tp,
        nodes_per_unit=max(1, section.ep_size // spec.cluster.gpus_per_node),
        num_logical_experts=num_routed_experts,
        num_physical_experts=num_routed_experts + section.redundant_experts,
        shared_per_gpu=num_shared_experts,
        overlap=section.overlap,
        precision=section.precision,
        gpu=spec.gpu_name(phase),
    )

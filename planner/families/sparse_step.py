"""The base of Qwen's families: which layers have experts, and a shared expert behind a gate.

Experts are in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not name. Published files of Qwen3 have
them in every layer.

Source: transformers 5.23.0 models/qwen3_moe/modeling_qwen3_moe.py, Qwen3MoeDecoderLayer.
"""

from dataclasses import replace
from typing import ClassVar

from planner.facts.model import Dense, Experts
from planner.families.shapes import Count, Entry, GroupedShapes, PerLayer, Size

__all__ = ["SharedExpertShapes", "SparseStepShapes"]


class SparseStepShapes(GroupedShapes):
    """The keys that say which layers have experts, and what these are."""

    intermediate_size: Size | None = None  # of dense layers
    moe_intermediate_size: Size
    num_experts: Count
    decoder_sparse_step: Count = 1
    mlp_only_layers: PerLayer[Entry] | None = None

    counts_experts: ClassVar[str] = "num_experts"

    @property
    def order(self) -> str:
        """Return the keys that say which layers are dense."""
        return "decoder_sparse_step and mlp_only_layers"

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts."""
        step, dense = self.decoder_sparse_step, frozenset(self.mlp_only_layers or ())
        return [index not in dense and (index + 1) % step == 0 for index in range(self.num_hidden_layers)]

    def contradiction(self) -> str | None:
        """Return that dense layers have no size, or None."""
        is_missing = self.intermediate_size is None and not all(self.is_moe())
        return "some layers are dense, and there is no intermediate_size" if is_missing else None

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        return Experts(self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)

    def dense(self) -> Dense:
        """Return the FFN of each dense layer."""
        assert self.intermediate_size is not None
        return Dense(self.intermediate_size)


class SharedExpertShapes(SparseStepShapes):
    """The same with one shared expert, weighted by a gate."""

    shared_expert_intermediate_size: Size

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        size = self.shared_expert_intermediate_size
        return replace(super().experts(), num_shared=1, shared_intermediate_size=size, gates_shared=True)

"""What Qwen's families share: which layers have experts, and a shared expert behind a gate.

Experts are in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not name. Published files of Qwen3 have
them in every layer.

Source: transformers 5.23.0 models/qwen3_moe/modeling_qwen3_moe.py, Qwen3MoeDecoderLayer.
"""

from dataclasses import replace

from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import Count, Entry, PerLayer, Shapes, Size, layers_of

__all__ = ["SharedExpertShapes", "SparseStepShapes"]


class SparseStepShapes(Shapes):
    """The keys that say which layers have experts, and what these are."""

    intermediate_size: Size | None = None  # of dense layers
    moe_intermediate_size: Size
    num_experts: Count
    num_key_value_heads: Count
    decoder_sparse_step: Count = 1
    mlp_only_layers: PerLayer[Entry] | None = None

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        if not all(self._is_moe()) and self.intermediate_size is None:
            return "some layers are dense, and there is no intermediate_size"
        return self.together(
            self.none_left("decoder_sparse_step and mlp_only_layers", self._is_moe()),
            self.uneven_heads(self.num_key_value_heads),
            self.too_many_chosen("num_experts", self.num_experts),
        )

    def unplanned(self) -> str | None:
        """Return which layers are dense that may not be."""
        return self.dense_later("decoder_sparse_step and mlp_only_layers", self._is_moe())

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, dense ones first, where there are any."""
        num_moe = sum(self._is_moe())
        dense = Dense(self.intermediate_size or 0)
        return layers_of(self.attention, self.num_hidden_layers - num_moe, dense, [self.experts()] * num_moe)

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        return Experts(self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)

    def _is_moe(self) -> list[bool]:
        step, dense = self.decoder_sparse_step, frozenset(self.mlp_only_layers or ())
        return [index not in dense and (index + 1) % step == 0 for index in range(self.num_hidden_layers)]


class SharedExpertShapes(SparseStepShapes):
    """The same with one shared expert, which a gate weighs."""

    shared_expert_intermediate_size: Size

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        size = self.shared_expert_intermediate_size
        return replace(super().experts(), num_shared=1, shared_intermediate_size=size, gates_shared=True)

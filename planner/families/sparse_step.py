"""Qwen's way to say which layers have experts: every `decoder_sparse_step`-th one that `mlp_only_layers` does not name.

Source: transformers 5.23.0 models/qwen3_moe/modeling_qwen3_moe.py, Qwen3MoeDecoderLayer. Published files of Qwen3 have
experts in every layer.
"""

from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import Count, Shapes, Size, layers_of

__all__ = ["SparseStepShapes"]


class SparseStepShapes(Shapes):
    """The keys that say which layers have experts."""

    intermediate_size: Size | None = None  # of dense layers
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] | None = None

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        if not all(self._is_moe()) and self.intermediate_size is None:
            return "some layers are dense, and there is no intermediate_size"
        return self.none_left("decoder_sparse_step and mlp_only_layers", self._is_moe())

    def unplanned(self) -> str | None:
        """Return which layers are dense that may not be."""
        return self.dense_later("decoder_sparse_step and mlp_only_layers", self._is_moe())

    def layers_with(self, experts: Experts) -> tuple[Layer, ...]:
        """Return the layers: dense ones first, then those with `experts`."""
        num_moe = sum(self._is_moe())
        dense = Dense(self.intermediate_size or 0)
        return layers_of(self.attention, self.num_hidden_layers - num_moe, dense, [experts] * num_moe)

    def _is_moe(self) -> list[bool]:
        step, dense = self.decoder_sparse_step, self.mlp_only_layers or []
        return [index not in dense and (index + 1) % step == 0 for index in range(self.num_hidden_layers)]

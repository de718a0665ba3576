"""Qwen3 MoE: grouped attention, experts in every layer as published, none shared.

Source of the keys: transformers `Qwen3MoeConfig`, which writes the number of experts under another name than it was
published under.
"""

from pydantic import AliasChoices, Field

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Experts, Layer
from planner.families.shapes import Count, Size
from planner.families.sparse_step import SparseStepShapes

__all__ = ["Qwen3MoeShapes"]


class Qwen3MoeShapes(SparseStepShapes):
    """The keys that the family reads."""

    moe_intermediate_size: Size
    num_experts: Count = Field(validation_alias=AliasChoices("num_experts", "num_local_experts"))
    num_key_value_heads: Count
    head_dim: Size
    attention_bias: bool = False
    use_sliding_window: bool = False

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        return (
            super().broken()
            or self.uneven_heads(self.num_key_value_heads)
            or self.too_many_chosen("num_experts", self.num_experts)
        )

    def unplanned(self) -> str | None:
        """Return that attention has a window, which no published checkpoint of the family has; or the layers' order."""
        return "use_sliding_window is true" if self.use_sliding_window else super().unplanned()

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, dense ones first, where there are any."""
        experts = Experts(self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)
        return self.layers_with(experts)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            norms="head",
            biases="all" if self.attention_bias else "none",
        )

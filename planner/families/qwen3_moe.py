"""Qwen3 MoE: grouped attention, experts in every layer as published, none shared.

Source of the keys: transformers `Qwen3MoeConfig`, whose key for the number of experts differs from published files'.
"""

from pydantic import AliasChoices, Field

from planner.facts.attention.grouped import GroupedAttention
from planner.families.shapes import Count, Size
from planner.families.sparse_step import SparseStepShapes

__all__ = ["Qwen3MoeShapes"]


class Qwen3MoeShapes(SparseStepShapes):
    """The keys that the family reads."""

    num_experts: Count = Field(validation_alias=AliasChoices("num_experts", "num_local_experts"))
    head_dim: Size
    attention_bias: bool = False
    use_sliding_window: bool = False

    def unplanned(self) -> str | None:
        """Return what the planner cannot plan, such as a window, which no published checkpoint of the family has."""
        return "use_sliding_window is true" if self.use_sliding_window else super().unplanned()

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            norms="head",
            biases="all" if self.attention_bias else "none",
        )

"""Qwen3 MoE: grouped attention, experts in every layer, none shared.

Source of the keys: transformers `Qwen3MoeConfig`, which writes the number of experts under another name than it was
published under.
"""

from pydantic import AliasChoices, Field

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import Count, Shapes, Size, layers_of

__all__ = ["Qwen3MoeShapes"]


class Qwen3MoeShapes(Shapes):
    """The keys that the family reads."""

    moe_intermediate_size: Size
    num_experts: Count = Field(validation_alias=AliasChoices("num_experts", "num_local_experts"))
    num_key_value_heads: Count
    head_dim: Size
    attention_bias: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    use_sliding_window: bool = False

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        if self.decoder_sparse_step != 1 or self.mlp_only_layers:
            return "decoder_sparse_step and mlp_only_layers put dense layers among the MoE layers, which is not planned"
        if self.use_sliding_window:
            return "use_sliding_window is true, which no published checkpoint of the family has and is not planned"
        return self.uneven_heads(self.num_key_value_heads) or self.too_many_chosen("num_experts", self.num_experts)

    def layers(self) -> tuple[Layer, ...]:
        """All alike."""
        experts = Experts(self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)
        return layers_of(self.attention, 0, Dense(0), [experts] * self.num_hidden_layers)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            norms="head",
            biases="all" if self.attention_bias else "none",
        )

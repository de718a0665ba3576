"""MiniMax-M2: grouped attention, experts in every layer, none shared.

Source of the keys: transformers `MiniMaxM2Config`. Published files say besides that no layer's attention is linear.
"""

from typing import Any

from pydantic import Field

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import MAX_LAYERS, Count, Entry, PerLayer, Shapes, Size, layers_of

__all__ = ["MiniMaxM2Shapes"]


class MiniMaxM2Shapes(Shapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of an expert
    num_local_experts: Count
    num_key_value_heads: Count
    head_dim: Size
    shared_intermediate_size: int = Field(default=0, ge=0, le=0)
    attn_type_list: PerLayer[Entry] | None = None
    num_mtp_modules: int = Field(default=0, ge=0, le=MAX_LAYERS)

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        return self.together(
            self.uneven_heads(self.num_key_value_heads),
            self.too_many_chosen("num_local_experts", self.num_local_experts),
        )

    def unplanned(self) -> str | None:
        """Return that layers have another attention, where it is so."""
        return "attn_type_list says that layers have linear attention" if 0 in (self.attn_type_list or []) else None

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, all alike."""
        experts = Experts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)
        return layers_of(self.attention, 0, Dense(0), [experts] * self.num_hidden_layers)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer, which norms all heads together."""
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, self.head_dim, norms="heads")

    def more(self) -> dict[str, Any]:
        """Return the number of MTP layers, under the family's name."""
        return {"num_mtp_layers": self.num_mtp_modules}

"""Mixtral: grouped attention, experts in every layer, none shared.

Source of the keys: transformers `MixtralConfig`.
"""

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import Count, Shapes, Size, layers_of

__all__ = ["MixtralShapes"]


class MixtralShapes(Shapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of an expert
    num_local_experts: Count
    num_key_value_heads: Count
    head_dim: Size | None = None
    sliding_window: Size | None = None

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            return f"num_attention_heads ({self.num_attention_heads}) does not divide hidden_size ({self.hidden_size})"
        return self.together(
            self.uneven_heads(self.num_key_value_heads),
            self.too_many_chosen("num_local_experts", self.num_local_experts),
        )

    def unplanned(self) -> str | None:
        """Return that attention has a window, which no published checkpoint of the family has."""
        return None if self.sliding_window is None else "sliding_window is set"

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, all alike."""
        experts = Experts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)
        return layers_of(self.attention, 0, Dense(0), [experts] * self.num_hidden_layers)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, head_dim)

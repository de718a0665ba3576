"""Mixtral: grouped attention, experts in every layer, none shared.

Source of the keys: transformers `MixtralConfig`.
"""

from typing import ClassVar

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Experts
from planner.families.shapes import Count, GroupedShapes, Size, explain_uneven

__all__ = ["MixtralShapes"]


class MixtralShapes(GroupedShapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of an expert
    num_local_experts: Count
    head_dim: Size | None = None
    sliding_window: Size | None = None

    counts_experts: ClassVar[str] = "num_local_experts"

    def contradiction(self) -> str | None:
        """Return that heads do not divide the hidden size, or None."""
        heads, size = self.num_attention_heads, self.hidden_size
        return None if self.head_dim else explain_uneven("num_attention_heads", heads, "hidden_size", size)

    def unplanned(self) -> str | None:
        """Return what the planner cannot plan, such as a window, which no published checkpoint of the family has."""
        return super().unplanned() if self.sliding_window is None else "sliding_window is set"

    def experts(self) -> Experts:
        """Return the experts of each layer."""
        return Experts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, head_dim)

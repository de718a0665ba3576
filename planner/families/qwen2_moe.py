"""Qwen2 MoE and Qwen1.5 MoE: grouped attention with biases, a shared expert behind a gate.

Source of the keys: transformers `Qwen2MoeConfig`.
"""

from planner.facts.attention.grouped import GroupedAttention
from planner.families.shapes import Size, explain_uneven
from planner.families.sparse_step import SharedExpertShapes

__all__ = ["Qwen2MoeShapes"]


class Qwen2MoeShapes(SharedExpertShapes):
    """The keys that the family reads."""

    head_dim: Size | None = None
    qkv_bias: bool = True
    use_sliding_window: bool = False

    def contradiction(self) -> str | None:
        """Return a contradiction, such as heads that do not divide the hidden size, or None."""
        heads, size = self.num_attention_heads, self.hidden_size
        own = None if self.head_dim else explain_uneven("num_attention_heads", heads, "hidden_size", size)
        return own or super().contradiction()

    def unplanned(self) -> str | None:
        """Return what the planner cannot plan, such as a window, which no published checkpoint of the family has."""
        return "use_sliding_window is true" if self.use_sliding_window else super().unplanned()

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer; its output has no bias."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        biases = "qkv" if self.qkv_bias else "none"
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, head_dim, biases=biases)

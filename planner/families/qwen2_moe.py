"""Qwen2 MoE and Qwen1.5 MoE: grouped attention with biases, a shared expert behind a gate.

Source of the keys: transformers `Qwen2MoeConfig`.
"""

from planner.facts.attention.grouped import GroupedAttention
from planner.families.shapes import Size
from planner.families.sparse_step import SharedExpertShapes

__all__ = ["Qwen2MoeShapes"]


class Qwen2MoeShapes(SharedExpertShapes):
    """The keys that the family reads."""

    head_dim: Size | None = None
    qkv_bias: bool = True
    use_sliding_window: bool = False

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            return f"num_attention_heads ({self.num_attention_heads}) does not divide hidden_size ({self.hidden_size})"
        return super().broken()

    def unplanned(self) -> str | None:
        """Return that attention has a window, which no published checkpoint of the family has; or the layers' order."""
        return "use_sliding_window is true" if self.use_sliding_window else super().unplanned()

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer; its output has no bias."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        biases = "qkv" if self.qkv_bias else "none"
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, head_dim, biases=biases)

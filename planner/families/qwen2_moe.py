"""Qwen2 MoE and Qwen1.5 MoE: grouped attention with biases, a shared expert behind a gate.

Source of the keys: transformers `Qwen2MoeConfig`.
"""

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Experts, Layer
from planner.families.shapes import Count, Size
from planner.families.sparse_step import SparseStepShapes

__all__ = ["Qwen2MoeShapes"]


class Qwen2MoeShapes(SparseStepShapes):
    """The keys that the family reads."""

    moe_intermediate_size: Size
    shared_expert_intermediate_size: Size
    num_experts: Count
    num_key_value_heads: Count
    head_dim: Size | None = None
    qkv_bias: bool = True
    use_sliding_window: bool = False

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            return f"num_attention_heads ({self.num_attention_heads}) does not divide hidden_size ({self.hidden_size})"
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
        experts = Experts(
            num_routed=self.num_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.moe_intermediate_size,
            num_shared=1,
            shared_intermediate_size=self.shared_expert_intermediate_size,
            gates_shared=True,
        )
        return self.layers_with(experts)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer; its output has no bias."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        biases = "qkv" if self.qkv_bias else "none"
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, head_dim, biases=biases)

"""GLM-4.5, 4.6 and 4.7: grouped attention, dense layers first, a shared expert.

Source of the keys: transformers `Glm4MoeConfig`.
"""

from planner.facts.attention.grouped import GroupedAttention
from planner.families.shapes import Count, DenseFirstShapes, GroupedShapes, Size

__all__ = ["Glm4MoeShapes"]


class Glm4MoeShapes(DenseFirstShapes, GroupedShapes):
    """The keys that the family reads."""

    n_group: Count
    topk_group: Count
    head_dim: Size
    attention_bias: bool = False
    use_qk_norm: bool = False

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer; its output has no bias."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            norms="head" if self.use_qk_norm else "none",
            biases="qkv" if self.attention_bias else "none",
        )

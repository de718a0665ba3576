"""GLM-4.5, 4.6 and 4.7: grouped attention, dense layers first, a shared expert.

Source of the keys: transformers `Glm4MoeConfig`.
"""

from pydantic import Field

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import MAX_LAYERS, Count, Shapes, Size, layers_of

__all__ = ["Glm4MoeShapes"]


class Glm4MoeShapes(Shapes):
    """The keys that the family reads."""

    intermediate_size: Size
    moe_intermediate_size: Size
    first_k_dense_replace: int = Field(ge=0, le=MAX_LAYERS)
    n_routed_experts: Count
    n_shared_experts: int = Field(ge=0, le=64)
    n_group: Count
    topk_group: Count
    num_key_value_heads: Count
    head_dim: Size
    attention_bias: bool = False
    use_qk_norm: bool = False

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        return self.together(
            self.none_left(f"first_k_dense_replace ({self.first_k_dense_replace})", self._is_moe()),
            self.uneven_groups(self.n_group, self.topk_group, self.n_routed_experts),
            self.uneven_heads(self.num_key_value_heads),
            self.too_many_chosen("n_routed_experts", self.n_routed_experts),
        )

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, dense ones first."""
        experts = Experts(
            num_routed=self.n_routed_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.moe_intermediate_size,
            num_shared=self.n_shared_experts,
            shared_intermediate_size=self.moe_intermediate_size,
            num_groups=self.n_group,
            num_groups_per_token=self.topk_group,
        )
        num_moe = sum(self._is_moe())
        return layers_of(self.attention, self.first_k_dense_replace, Dense(self.intermediate_size), [experts] * num_moe)

    def draft_layer(self) -> Layer | None:
        """Return the layer of an MTP module, which is like the main model's last."""
        return self.layers()[-1] if self.num_nextn_predict_layers else None

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer; its output has no bias."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            norms="head" if self.use_qk_norm else "none",
            biases="qkv" if self.attention_bias else "none",
        )

    def _is_moe(self) -> list[bool]:
        return [index >= self.first_k_dense_replace for index in range(self.num_hidden_layers)]

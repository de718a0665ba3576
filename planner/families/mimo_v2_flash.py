"""MiMo-V2-Flash: grouped attention, over a window in most layers; dense layers first.

Layers with a window have another number of KV heads, and a sink for each head. Values are shorter than keys.

Source of the keys: transformers `MiMoV2FlashConfig` and, for published files, sglang 0.5.23 models/mimo_v2.py.
Published files have keys for windowed layers (`swa_...`); transformers computes the same from a rule.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from planner.facts.attention.kind import Attention
from planner.facts.model import Dense, Experts
from planner.families.grouped import GroupedShapes
from planner.families.shapes import Count, PerLayer, Size, explain_uneven

FULL_EVERY = 6  # by default layer 0 and every sixth layer read all tokens, the others a window


class MiMoV2FlashShapes(GroupedShapes):
    """The keys of `config.json` that MiMo-V2-Flash reads."""

    intermediate_size: Size  # of dense layers
    moe_intermediate_size: Size
    n_routed_experts: Count
    n_shared_experts: None = None
    n_group: Count
    topk_group: Count
    head_dim: Size
    v_head_dim: Size
    swa_num_attention_heads: Count | None = None
    swa_num_key_value_heads: Count | None = None  # None: twice those of full attention
    swa_head_dim: Size | None = None
    swa_v_head_dim: Size | None = None
    sliding_window: Size
    add_swa_attention_sink_bias: bool = True
    add_full_attention_sink_bias: bool = False
    hybrid_layer_pattern: PerLayer[Literal[0, 1]] | None = None  # 1: the layer has a window
    layer_types: PerLayer[Literal["full_attention", "sliding_attention"]] | None = None
    moe_layer_freq: PerLayer[Literal[0, 1]] | None = None
    mlp_layer_types: PerLayer[Literal["dense", "sparse"]] | None = None

    biased: ClassVar[str] = "qkv"
    per_layer: ClassVar[tuple[str, ...]] = ("hybrid_layer_pattern", "layer_types", "moe_layer_freq", "mlp_layer_types")

    @property
    def order(self) -> str:
        """Return the key that says which layers are dense."""
        return "mlp_layer_types" if self.mlp_layer_types is not None else "moe_layer_freq"

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts; by default all but the first have."""
        if self.mlp_layer_types is not None:
            return [each == "sparse" for each in self.mlp_layer_types]
        if self.moe_layer_freq is not None:
            return [each == 1 for each in self.moe_layer_freq]
        return [index > 0 for index in range(self.num_hidden_layers)]

    def uneven_heads(self) -> Iterator[str | None]:
        """Yield a reason for each number of heads that should divide another but does not; None where it does.

        Windowed layers have numbers of heads of their own.
        """
        yield from super().uneven_heads()
        yield explain_uneven(
            "swa_num_key_value_heads", self._windowed_kv_heads, "swa_num_attention_heads", self._windowed_heads
        )

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        return Experts(
            num_routed=self.n_routed_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.moe_intermediate_size,
            num_groups=self.n_group,
            num_groups_per_token=self.topk_group,
        )

    def dense(self) -> Dense:
        """Return the FFN of each dense layer."""
        return Dense(self.intermediate_size)

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`; the output projection has no bias."""
        if not self._is_windowed(index):
            return self.grouped(value_dim=self.v_head_dim, has_sinks=self.add_full_attention_sink_bias)
        return replace(
            self.grouped(window=self.sliding_window, has_sinks=self.add_swa_attention_sink_bias),
            num_heads=self._windowed_heads,
            num_kv_heads=self._windowed_kv_heads,
            head_dim=self.swa_head_dim or self.head_dim,
            value_dim=self.swa_v_head_dim or self.v_head_dim,
        )

    @property
    def _windowed_heads(self) -> int:
        return self.swa_num_attention_heads or self.num_attention_heads

    @property
    def _windowed_kv_heads(self) -> int:
        return self.swa_num_key_value_heads or 2 * self.num_key_value_heads

    def _is_windowed(self, index: int) -> bool:
        if self.layer_types is not None:
            return self.layer_types[index] == "sliding_attention"
        if self.hybrid_layer_pattern is not None:
            return self.hybrid_layer_pattern[index] == 1
        return index > 0 and (index + 1) % FULL_EVERY > 0

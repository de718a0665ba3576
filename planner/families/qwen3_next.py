"""Qwen3-Next and Qwen3.5: linear attention in most layers, grouped attention with a gate in the others.

Source of the keys: transformers `Qwen3NextConfig`, `Qwen3_5MoeTextConfig` and, of the tower, `Qwen3_5MoeVisionConfig`
and modeling_qwen3_5_moe.py.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import AliasChoices, Field

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.attention.kind import Attention
from planner.facts.attention.linear import LinearAttention
from planner.facts.model import MAX_LAYERS
from planner.families.shapes import Count, PerLayer, Size, Tower, encoder_layer, explain_uneven
from planner.families.sparse_step import SharedExpertShapes

__all__ = ["Qwen3NextShapes", "Qwen35Tower"]


class Qwen3NextShapes(SharedExpertShapes):
    """The keys that the families read."""

    num_experts: Count = Field(validation_alias=AliasChoices("num_experts", "num_local_experts"))
    head_dim: Size
    attention_bias: bool = False
    linear_conv_kernel_dim: Count
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    linear_num_key_heads: Count
    linear_num_value_heads: Count
    layer_types: PerLayer[Literal["linear_attention", "full_attention"]] | None = None
    full_attention_interval: int = Field(default=4, ge=1, le=MAX_LAYERS)
    mamba_ssm_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    mtp_num_hidden_layers: int = Field(default=0, ge=0, le=MAX_LAYERS)

    per_layer: ClassVar[tuple[str, ...]] = ("layer_types",)

    def uneven_heads(self) -> Iterator[str | None]:
        """Yield what is wrong with the numbers of heads, those of linear attention included."""
        yield from super().uneven_heads()
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        yield explain_uneven("linear_num_key_heads", keys, "linear_num_value_heads", values)

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`."""
        if self._is_full(index):
            return GroupedAttention(
                self.num_attention_heads,
                self.num_key_value_heads,
                self.head_dim,
                norms="head",
                biases="all" if self.attention_bias else "none",
                has_gate=True,
            )
        return LinearAttention(
            num_key_heads=self.linear_num_key_heads,
            key_head_dim=self.linear_key_head_dim,
            num_value_heads=self.linear_num_value_heads,
            value_head_dim=self.linear_value_head_dim,
            conv_size=self.linear_conv_kernel_dim,
            state_value_bytes=4 if self.mamba_ssm_dtype == "float32" else 2,
        )

    @property
    def num_mtp_layers(self) -> int:
        """Return the number of MTP modules, under the name of either family."""
        return self.mtp_num_hidden_layers or self.num_nextn_predict_layers

    def _is_full(self, index: int) -> bool:
        if self.layer_types is not None:
            return self.layer_types[index] == "full_attention"
        return (index + 1) % self.full_attention_interval == 0


class Qwen35Tower(Tower):
    """The keys of `vision_config`."""

    depth: Count
    hidden_size: Size
    intermediate_size: Size
    in_channels: Count = 3
    patch_size: Count
    temporal_patch_size: Count = 2
    spatial_merge_size: Count = 2
    num_position_embeddings: Size
    out_hidden_size: Size

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the parameters of patches, layers and the merger into the text model."""
        size, inner = self.hidden_size, self.intermediate_size
        patches = self.in_channels * self.temporal_patch_size * self.patch_size**2 * size + size
        merged = size * self.spatial_merge_size**2
        merger = 2 * size + merged * merged + merged + merged * self.out_hidden_size + self.out_hidden_size
        return patches + self.num_position_embeddings * size + self.depth * encoder_layer(size, inner) + merger

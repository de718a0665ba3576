"""Qwen3-Next and Qwen3.5: linear attention in most layers, grouped attention with a gate in the others.

Source of the keys: transformers `Qwen3NextConfig` and `Qwen3_5MoeTextConfig`.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from planner.facts.attention.kind import Attention
from planner.facts.attention.linear import LinearAttention
from planner.facts.model import MAX_LAYERS
from planner.families.grouped import SharedExpertShapes
from planner.families.shapes import Count, PerLayer, Size, explain_uneven


class Qwen3NextShapes(SharedExpertShapes):
    """The keys of `config.json` that Qwen3-Next and Qwen3.5 read."""

    head_dim: Size
    linear_conv_kernel_dim: Count
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    linear_num_key_heads: Count
    linear_num_value_heads: Count
    layer_types: PerLayer[Literal["linear_attention", "full_attention"]] | None = None
    full_attention_interval: int = Field(default=4, ge=1, le=MAX_LAYERS)
    mamba_ssm_dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    per_layer: ClassVar[tuple[str, ...]] = ("layer_types",)

    def uneven_heads(self) -> Iterator[str | None]:
        """Yield a reason for each number of heads that should divide another but does not; None where it does.

        Linear layers have numbers of heads of their own.
        """
        yield from super().uneven_heads()
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        yield explain_uneven("linear_num_key_heads", keys, "linear_num_value_heads", values)

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`."""
        if self._is_full(index):
            return self.grouped(has_gate=True)
        return LinearAttention(
            num_key_heads=self.linear_num_key_heads,
            key_head_dim=self.linear_key_head_dim,
            num_value_heads=self.linear_num_value_heads,
            value_head_dim=self.linear_value_head_dim,
            conv_size=self.linear_conv_kernel_dim,
            state_value_bytes=4 if self.mamba_ssm_dtype == "float32" else 2,
        )

    def _is_full(self, index: int) -> bool:
        if self.layer_types is not None:
            return self.layer_types[index] == "full_attention"
        return (index + 1) % self.full_attention_interval == 0

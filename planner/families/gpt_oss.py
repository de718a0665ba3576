"""gpt-oss: grouped attention with sinks and biases, over a window in every other layer; experts in every layer.

Source of the keys: transformers `GptOssConfig`.
"""

from typing import ClassVar, Literal

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Experts
from planner.families.shapes import Count, GroupedShapes, PerLayer, Size

__all__ = ["GptOssShapes"]


class GptOssShapes(GroupedShapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of an expert
    num_local_experts: Count
    head_dim: Size
    attention_bias: bool = True
    sliding_window: Size
    layer_types: PerLayer[Literal["sliding_attention", "full_attention"]] | None = None

    counts_experts: ClassVar[str] = "num_local_experts"
    per_layer: ClassVar[tuple[str, ...]] = ("layer_types",)

    def experts(self) -> Experts:
        """Return the experts of each layer."""
        return Experts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size, has_biases=True)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of layer `index`."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            window=self.sliding_window if self._is_windowed(index) else None,
            biases="all" if self.attention_bias else "none",
            has_sinks=True,
        )

    def _is_windowed(self, index: int) -> bool:
        """Return whether layer `index` has a window; by default every other layer has."""
        if self.layer_types is not None:
            return self.layer_types[index] == "sliding_attention"
        return index % 2 == 0

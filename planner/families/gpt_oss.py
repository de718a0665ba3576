"""gpt-oss: grouped attention with sinks and biases, over a window in every other layer; experts in every layer.

Source of the keys: transformers `GptOssConfig`.
"""

from typing import Literal

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import Count, PerLayer, Shapes, Size, layers_of

__all__ = ["GptOssShapes"]


class GptOssShapes(Shapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of an expert
    num_local_experts: Count
    num_key_value_heads: Count
    head_dim: Size
    attention_bias: bool = True
    sliding_window: Size
    layer_types: PerLayer[Literal["sliding_attention", "full_attention"]] | None = None

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        return self.together(
            self.miscounted(layer_types=self.layer_types),
            self.uneven_heads(self.num_key_value_heads),
            self.too_many_chosen("num_local_experts", self.num_local_experts),
        )

    def unplanned(self) -> str | None:
        """Return that no KV grows, which memory for tokens is planned by."""
        windowed = map(self._is_windowed, range(self.num_hidden_layers))
        return "no layer has full_attention" if all(windowed) else None

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, each with experts."""
        experts = Experts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size, has_biases=True)
        return layers_of(self.attention, 0, Dense(0), [experts] * self.num_hidden_layers)

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
        """Return whether layer `index` has a window; where the file does not say, layers take turns."""
        if self.layer_types is not None:
            return self.layer_types[index] == "sliding_attention"
        return index % 2 == 0

"""The tower of Qwen3-VL with experts: its text model is Qwen3 MoE's, and inner layers of the tower reach it too.

Source: transformers 5.23.0 models/qwen3_vl_moe/modeling_qwen3_vl_moe.py, Qwen3VLMoeVisionModel.
"""

from planner.families.qwen3_next import Qwen35Tower
from planner.families.shapes import Entry, PerLayer

__all__ = ["Qwen3VlTower"]


class Qwen3VlTower(Qwen35Tower):
    """The keys of `vision_config` that Qwen3.5's lacks."""

    deepstack_visual_indexes: PerLayer[Entry]

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the parameters of Qwen3.5's tower, and a merger for each inner layer that reaches the text model."""
        merged = self.hidden_size * self.spatial_merge_size**2
        merger = 2 * merged + merged * merged + merged + merged * self.out_hidden_size + self.out_hidden_size
        return super().num_weights(text_hidden_size) + len(self.deepstack_visual_indexes) * merger

"""GLM-4.7-Flash: DeepSeek-V3's architecture, where a list may say which layers are dense.

Source of the keys: transformers `Glm4MoeLiteConfig`, whose default is one dense layer.
"""

from typing import Literal

from pydantic import Field

from planner.families.deepseek import LatentShapes
from planner.families.shapes import MAX_LAYERS, PerLayer

__all__ = ["Glm4MoeLiteShapes"]


class Glm4MoeLiteShapes(LatentShapes):
    """The keys that the family reads beside V3's."""

    first_k_dense_replace: int = Field(default=1, ge=0, le=MAX_LAYERS)
    mlp_layer_types: PerLayer[Literal["dense", "sparse"]] | None = None

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        if self.mlp_layer_types is None:
            return super().broken()
        wrong = self.miscounted(mlp_layer_types=self.mlp_layer_types)
        return wrong or self.none_left("mlp_layer_types", self._is_moe()) or super().broken()

    def unplanned(self) -> str | None:
        """Return that layers with experts do not follow each other, where it is so."""
        return super().unplanned() or self.dense_later("mlp_layer_types", self._is_moe())

    @property
    def num_dense(self) -> int:
        """Return how many layers are dense: as the list says, where there is one."""
        return self.num_hidden_layers - sum(self._is_moe())

    def _is_moe(self) -> list[bool]:
        if self.mlp_layer_types is not None:
            return [each == "sparse" for each in self.mlp_layer_types]
        return [index >= self.first_k_dense_replace for index in range(self.num_hidden_layers)]

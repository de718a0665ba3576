"""GLM-4.7-Flash: DeepSeek-V3's architecture, with an optional list of dense layers.

Source of the keys: transformers `Glm4MoeLiteConfig`, whose default is one dense layer.
"""

from typing import ClassVar, Literal

from pydantic import Field

from planner.facts.model import MAX_LAYERS
from planner.families.deepseek import LatentShapes
from planner.families.shapes import PerLayer

__all__ = ["Glm4MoeLiteShapes"]


class Glm4MoeLiteShapes(LatentShapes):
    """The keys that the family adds to V3's."""

    first_k_dense_replace: int = Field(default=1, ge=0, le=MAX_LAYERS)
    mlp_layer_types: PerLayer[Literal["dense", "sparse"]] | None = None

    per_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types",)

    @property
    def order(self) -> str:
        """Return the key that says which layers are dense."""
        return super().order if self.mlp_layer_types is None else "mlp_layer_types"

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts, by the list if there is one."""
        if self.mlp_layer_types is None:
            return super().is_moe()
        return [each == "sparse" for each in self.mlp_layer_types]

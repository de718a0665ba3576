"""GLM-5: DeepSeek-V3.2's architecture, in which layers may share an earlier layer's indexer.

Source of the keys: transformers `GlmMoeDsaConfig`, which reads the schedule of indexers in this order: a list, a
pattern of letters, a frequency and an offset.
"""

from typing import ClassVar, Literal

from pydantic import Field

from planner.facts.attention.latent import Indexer
from planner.facts.model import MAX_LAYERS
from planner.families.deepseek import IndexedShapes
from planner.families.shapes import PerLayer

__all__ = ["GlmMoeDsaShapes"]


class GlmMoeDsaShapes(IndexedShapes):
    """The keys that the family adds to V3.2's."""

    indexer_types: PerLayer[Literal["full", "shared"]] | None = None
    index_topk_pattern: str | None = Field(default=None, pattern="^[FS]+$", max_length=2 * MAX_LAYERS)
    index_topk_freq: int = Field(default=1, ge=1, le=1000)
    index_skip_topk_offset: int = Field(default=2, ge=0, le=1000)

    per_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types", "indexer_types", "index_topk_pattern")

    def contradiction(self) -> str | None:
        """Return a contradiction, such as a first layer without an indexer, or None."""
        first = None if self._has_indexer(0) else "layer 0 shares an indexer, and no earlier layer has one"
        return super().contradiction() or first

    def draft_layer(self) -> None:
        """Return None, because it is unknown whether an MTP module has an indexer."""

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`; None if it shares an earlier layer's."""
        return super().indexer(index) if self._has_indexer(index) else None

    def _has_indexer(self, index: int) -> bool:
        if self.indexer_types is not None:
            return self.indexer_types[index] == "full"
        if self.index_topk_pattern is not None:
            return self.index_topk_pattern[index] == "F"
        return max(index - self.index_skip_topk_offset + 1, 0) % self.index_topk_freq == 0

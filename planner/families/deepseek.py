"""DeepSeek-V2, V3 and V3.2, and Kimi-K2, which has V3's architecture: latent attention, dense layers first.

Source of the keys: transformers `DeepseekV2Config`, `DeepseekV3Config` and `DeepseekV32Config`.
"""

from typing import ClassVar

from pydantic import Field

from planner.facts.attention.latent import Indexer, LatentAttention
from planner.facts.model import MAX_LAYERS
from planner.families.shapes import Count, DenseFirstShapes, PerLayer, Size

__all__ = ["IndexedShapes", "LatentShapes"]


class LatentShapes(DenseFirstShapes):
    """The keys that V2, V3 and Kimi-K2 read."""

    moe_layer_freq: int = Field(default=1, ge=0, le=MAX_LAYERS)
    q_lora_rank: int | None = Field(ge=1, le=1_000_000)
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size

    def unplanned(self) -> str | None:
        """Return what the planner cannot plan, such as MoE layers that are not consecutive."""
        freq = self.moe_layer_freq
        between = None if freq == 1 else f"by moe_layer_freq ({freq}), dense layers stand among MoE layers"
        return between or super().unplanned()

    def attention(self, index: int) -> LatentAttention:
        """Return the attention of layer `index`."""
        return LatentAttention(
            num_heads=self.num_attention_heads,
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            indexer=self.indexer(index),
            num_picked=self.num_picked,
        )

    @property
    def num_picked(self) -> int | None:
        """Return how many earlier tokens a query reads, if an indexer picks them."""
        return None

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`, or None."""
        return None


class IndexedShapes(LatentShapes):
    """The keys that V3.2 adds."""

    index_n_heads: Count
    index_head_dim: Size
    index_topk: Count = 2048  # of ModelArgs: github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/model.py
    mlp_layer_types: PerLayer[str] | None = None

    per_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types",)

    def contradiction(self) -> str | None:
        """Return that the list and the number of dense layers disagree, or None."""
        types, dense = self.mlp_layer_types, self.first_k_dense_replace
        if types is None or [each == "dense" for each in types] == [index < dense for index in range(len(types))]:
            return None
        return f"mlp_layer_types and first_k_dense_replace ({dense}) disagree on which layers are dense"

    @property
    def num_picked(self) -> int | None:
        """Return how many tokens a query reads."""
        return self.index_topk

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`."""
        return Indexer(self.index_n_heads, self.index_head_dim)

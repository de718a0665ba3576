"""Families with latent attention: DeepSeek-V2 to V3.2, Kimi-K2 (V3's architecture), GLM-4.7-Flash and GLM-5.

Source of the keys: transformers `DeepseekV2Config`, `DeepseekV3Config`, `DeepseekV32Config`, `Glm4MoeLiteConfig` and
`GlmMoeDsaConfig`.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from planner.facts.attention.latent import Indexer, LatentAttention
from planner.facts.model import MAX_LAYERS, Layer
from planner.families.shapes import Count, DenseFirstShapes, PerLayer, Size


class LatentShapes(DenseFirstShapes):
    """The keys that DeepSeek-V2, DeepSeek-V3 and Kimi-K2 read."""

    moe_layer_freq: int = Field(default=1, ge=0, le=MAX_LAYERS)
    q_lora_rank: int | None = Field(ge=1, le=1_000_000)
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    index_topk: Count | None = None  # how many earlier tokens a query reads, if an indexer picks them

    def planning_obstacle(self) -> str | None:
        """Return the reason why the planner cannot plan these shapes, such as scattered MoE layers; None if it can."""
        freq = self.moe_layer_freq
        between = None if freq == 1 else f"by moe_layer_freq ({freq}), dense layers stand among MoE layers"
        return between or super().planning_obstacle()

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
            num_picked=self.index_topk,
        )

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`; None, because these models have none."""
        return None


class Glm4MoeLiteShapes(LatentShapes):
    """The keys that GLM-4.7-Flash adds to DeepSeek-V3's: a list of dense and MoE layers; by default one is dense."""

    first_k_dense_replace: int = Field(default=1, ge=0, le=MAX_LAYERS)
    mlp_layer_types: PerLayer[Literal["dense", "sparse"]] | None = None

    per_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types",)

    @property
    def order(self) -> str:
        """Return the key that says which layers are dense."""
        return super().order if self.mlp_layer_types is None else "mlp_layer_types"

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts, by `mlp_layer_types` if the file has it."""
        return super().is_moe() if self.mlp_layer_types is None else [each == "sparse" for each in self.mlp_layer_types]


class IndexedShapes(LatentShapes):
    """The keys that DeepSeek-V3.2 adds to V3's: each layer has an indexer."""

    index_n_heads: Count
    index_head_dim: Size
    # The default is that of ModelArgs: github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/model.py
    index_topk: Count = 2048
    mlp_layer_types: PerLayer[str] | None = None

    per_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types",)

    def contradiction(self) -> str | None:
        """Explain that `mlp_layer_types` and `first_k_dense_replace` disagree, or return None."""
        types, dense = self.mlp_layer_types, self.first_k_dense_replace
        if types is None or [each == "dense" for each in types] == [index < dense for index in range(len(types))]:
            return None
        return f"mlp_layer_types and first_k_dense_replace ({dense}) disagree on which layers are dense"

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`; every layer has one."""
        return Indexer(self.index_n_heads, self.index_head_dim)


class GlmMoeDsaShapes(IndexedShapes):
    """The keys that GLM-5 adds to DeepSeek-V3.2's: layers may share an earlier layer's indexer.

    Which layers have their own indexer follows from the first of these keys that the file has: a list, a pattern of
    letters, or a frequency with an offset.
    """

    indexer_types: PerLayer[Literal["full", "shared"]] | None = None
    index_topk_pattern: str | None = Field(default=None, pattern="^[FS]+$", max_length=2 * MAX_LAYERS)
    index_topk_freq: int = Field(default=1, ge=1, le=1000)
    index_skip_topk_offset: int = Field(default=2, ge=0, le=1000)

    per_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types", "indexer_types", "index_topk_pattern")

    def contradiction(self) -> str | None:
        """Explain a contradiction between keys, such as a first layer without an indexer, or return None."""
        first = None if self._has_indexer(0) else "layer 0 shares an indexer, and no earlier layer has one"
        return super().contradiction() or first

    def draft_layer(self) -> Layer | None:
        """Return the layer of an MTP module, which has an indexer of its own; None if there is no module.

        Source: github.com/vllm-project/vllm-project.github.io 78cb4b4 _posts/2026-07-23-glm-5.2-nvfp4-b300-pd.md, 5.1;
        published files have `model.layers.78.self_attn.indexer`.
        """
        last = super().draft_layer()
        if last is None:
            return None
        return replace(last, attention=replace(self.attention(0), indexer=super().indexer(0)))

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`; None if it shares an earlier layer's."""
        return super().indexer(index) if self._has_indexer(index) else None

    def _has_indexer(self, index: int) -> bool:
        if self.indexer_types is not None:
            return self.indexer_types[index] == "full"
        if self.index_topk_pattern is not None:
            return self.index_topk_pattern[index] == "F"
        return max(index - self.index_skip_topk_offset + 1, 0) % self.index_topk_freq == 0

"""MiniMax-M3: grouped attention, in most layers over blocks that an indexer picks; dense layers first.

Source of the keys: transformers `MiniMaxM3VLTextConfig`, which reads those of published files too (`moe_layer_freq`,
`sparse_attention_config`); of the tower, `MiniMaxM3VLVisionConfig` and modeling_minimax_m3_vl.py.
"""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.facts.attention.grouped import BlockIndexer, GroupedAttention
from planner.facts.model import MAX_LAYERS, Dense, Experts
from planner.families.shapes import Count, Entry, GroupedShapes, PerLayer, Size, Tower, encoder_layer

__all__ = ["MiniMaxM3Shapes", "MiniMaxM3Tower"]


class _Sparse(BaseModel):
    """The published `sparse_attention_config`."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    sparse_attention_freq: PerLayer[Entry]
    sparse_num_index_heads: Count
    sparse_index_dim: Size
    sparse_topk_blocks: Count
    sparse_block_size: Size


class MiniMaxM3Shapes(GroupedShapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of a routed expert
    dense_intermediate_size: Size
    shared_intermediate_size: Size
    num_local_experts: Count
    head_dim: Size
    moe_layer_freq: PerLayer[Literal[0, 1]] | None = None
    mlp_layer_types: PerLayer[str] | None = None
    sparse_attention_config: _Sparse | None = None
    layer_types: PerLayer[str] | None = None
    index_n_heads: Count = 4
    index_head_dim: Size = 128
    index_topk_blocks: Count = 16
    index_block_size: Size = 128
    num_mtp_modules: int = Field(default=0, ge=0, le=MAX_LAYERS)

    counts_experts: ClassVar[str] = "num_local_experts"
    per_layer: ClassVar[tuple[str, ...]] = ("moe_layer_freq", "mlp_layer_types", "layer_types")

    @property
    def order(self) -> str:
        """Return the key that says which layers are dense."""
        return "mlp_layer_types" if self.mlp_layer_types is not None else "moe_layer_freq"

    def is_moe(self) -> list[bool]:
        """Return for each layer whether it has experts."""
        if self.mlp_layer_types is not None:
            return [each == "sparse" for each in self.mlp_layer_types]
        return [bool(each) for each in self.moe_layer_freq or [1] * self.num_hidden_layers]

    def contradiction(self) -> str | None:
        """Return that the list of sparse layers does not have one entry per layer, or None."""
        sparse = self.sparse_attention_config
        return self.miscounted("sparse_attention_freq", sparse.sparse_attention_freq) if sparse else None

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        return Experts(
            num_routed=self.num_local_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.intermediate_size,
            num_shared=1,
            shared_intermediate_size=self.shared_intermediate_size,
        )

    def dense(self) -> Dense:
        """Return the FFN of each dense layer."""
        return Dense(self.dense_intermediate_size)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of layer `index`."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            norms="head",
            indexer=self._indexer() if self._is_sparse(index) else None,
        )

    @property
    def num_mtp_layers(self) -> int:
        """Return the number of MTP modules, under the name of published files."""
        return self.num_mtp_modules or self.num_nextn_predict_layers

    def _indexer(self) -> BlockIndexer:
        sparse = self.sparse_attention_config
        if sparse:
            return BlockIndexer(
                sparse.sparse_num_index_heads,
                sparse.sparse_index_dim,
                sparse.sparse_topk_blocks,
                sparse.sparse_block_size,
            )
        return BlockIndexer(self.index_n_heads, self.index_head_dim, self.index_topk_blocks, self.index_block_size)

    def _is_sparse(self, index: int) -> bool:
        if self.layer_types is not None:
            return self.layer_types[index] == "minimax_m3_sparse"
        return bool(self.sparse_attention_config and self.sparse_attention_config.sparse_attention_freq[index])


class MiniMaxM3Tower(Tower):
    """The keys of `vision_config`."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Count
    num_channels: Count = 3
    patch_size: Count
    temporal_patch_size: Count = 2
    spatial_merge_size: Count = 2
    projector_hidden_size: Size  # of the outer file

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the parameters of patches, layers and the two projections of two matrices each."""
        size, inner, text, wide = self.hidden_size, self.intermediate_size, text_hidden_size, self.projector_hidden_size
        patches = self.num_channels * self.temporal_patch_size * self.patch_size**2 * size
        merged = text * self.spatial_merge_size**2
        projections = (size + merged) * wide + 2 * wide * text + 2 * (wide + text)
        return patches + 2 * size + self.num_hidden_layers * encoder_layer(size, inner) + projections

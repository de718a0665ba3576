"""MiniMax-M3: grouped attention of which most layers read blocks that an indexer picks; dense layers first.

Source of the keys: transformers `MiniMaxM3VLTextConfig`, which reads those of published files too (`moe_layer_freq`,
`sparse_attention_config`); of the tower, `MiniMaxM3VLVisionConfig` and modeling_minimax_m3_vl.py.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.facts.attention.grouped import BlockIndexer, GroupedAttention
from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import MAX_LAYERS, Count, Entry, PerLayer, Shapes, Size, Tower, encoder_layer, layers_of

__all__ = ["MiniMaxM3Shapes", "MiniMaxM3Tower"]


class _Sparse(BaseModel):
    """The published `sparse_attention_config`."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    sparse_attention_freq: PerLayer[Entry]
    sparse_num_index_heads: Count
    sparse_index_dim: Size
    sparse_topk_blocks: Count
    sparse_block_size: Size


class MiniMaxM3Shapes(Shapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of a routed expert
    dense_intermediate_size: Size
    shared_intermediate_size: Size
    num_local_experts: Count
    num_key_value_heads: Count
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

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        sparse = self.sparse_attention_config
        lists = {
            "moe_layer_freq": self.moe_layer_freq,
            "mlp_layer_types": self.mlp_layer_types,
            "layer_types": self.layer_types,
            "sparse_attention_freq": sparse.sparse_attention_freq if sparse else None,
        }
        return self.together(
            self.miscounted(**lists) or self.none_left(self._order, self._is_moe()),
            self.uneven_heads(self.num_key_value_heads),
            self.too_many_chosen("num_local_experts", self.num_local_experts),
        )

    def unplanned(self) -> str | None:
        """Return that layers with experts do not follow each other, where it is so."""
        return self.dense_later(self._order, self._is_moe())

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, dense ones first."""
        experts = Experts(
            num_routed=self.num_local_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.intermediate_size,
            num_shared=1,
            shared_intermediate_size=self.shared_intermediate_size,
        )
        num_moe = sum(self._is_moe())
        dense = Dense(self.dense_intermediate_size)
        return layers_of(self.attention, self.num_hidden_layers - num_moe, dense, [experts] * num_moe)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of layer `index`."""
        return GroupedAttention(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            norms="head",
            indexer=self._indexer() if self._is_sparse(index) else None,
        )

    def more(self) -> dict[str, Any]:
        """Return the number of MTP layers, under the family's name."""
        return {"num_mtp_layers": self.num_mtp_modules or self.num_nextn_predict_layers}

    @property
    def _order(self) -> str:
        """Return the key that says which layers are dense."""
        return "mlp_layer_types" if self.mlp_layer_types is not None else "moe_layer_freq"

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

    def _is_moe(self) -> list[bool]:
        if self.mlp_layer_types is not None:
            return [each == "sparse" for each in self.mlp_layer_types]
        return [bool(each) for each in self.moe_layer_freq or [1] * self.num_hidden_layers]


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

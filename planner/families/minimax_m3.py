"""MiniMax-M3: grouped attention, in most layers over blocks that an indexer picks; dense layers first.

Source of the keys: transformers `MiniMaxM3VLTextConfig`, which also reads the keys of published files
(`moe_layer_freq`, `sparse_attention_config`).
"""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from planner.facts.attention.grouped import BlockIndexer
from planner.facts.attention.kind import Attention
from planner.facts.model import Dense, Experts
from planner.families.grouped import LocalExpertsShapes
from planner.families.shapes import Count, Entry, PerLayer, Size


class _Sparse(BaseModel):
    """The keys inside `sparse_attention_config`, which published files have."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    sparse_attention_freq: PerLayer[Entry]
    sparse_num_index_heads: Count
    sparse_index_dim: Size
    sparse_topk_blocks: Count
    sparse_block_size: Size


class MiniMaxM3Shapes(LocalExpertsShapes):
    """The keys of `config.json` that MiniMax-M3 reads."""

    dense_intermediate_size: Size
    shared_intermediate_size: Size
    head_dim: Size
    moe_layer_freq: PerLayer[Literal[0, 1]] | None = None
    mlp_layer_types: PerLayer[str] | None = None
    sparse_attention_config: _Sparse | None = None
    layer_types: PerLayer[str] | None = None
    index_n_heads: Count = 4
    index_head_dim: Size = 128
    index_topk_blocks: Count = 16
    index_block_size: Size = 128

    norms: ClassVar[str] = "head"
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
        """Explain that `sparse_attention_freq` does not have one entry per layer, or return None."""
        sparse = self.sparse_attention_config
        return self.explain_wrong_length("sparse_attention_freq", sparse.sparse_attention_freq) if sparse else None

    def experts(self) -> Experts:
        """Return the experts of each MoE layer."""
        return replace(super().experts(), num_shared=1, shared_intermediate_size=self.shared_intermediate_size)

    def dense(self) -> Dense:
        """Return the FFN of each dense layer."""
        return Dense(self.dense_intermediate_size)

    def attention(self, index: int) -> Attention:
        """Return the attention of layer `index`."""
        return self.grouped(indexer=self._indexer() if self._is_sparse(index) else None)

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

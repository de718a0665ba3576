"""DeepSeek-V2, V3 and V3.2, and Kimi-K2, which has V3's architecture: latent attention, dense layers first.

Source of the keys: transformers `DeepseekV2Config`, `DeepseekV3Config` and `DeepseekV32Config`.
"""

from pydantic import Field

from planner.facts.attention.latent import Indexer, LatentAttention
from planner.facts.model import Dense, Experts, Layer
from planner.families.shapes import MAX_LAYERS, Count, PerLayer, Shapes, Size, layers_of

__all__ = ["IndexedShapes", "LatentShapes"]


class LatentShapes(Shapes):
    """The keys that V2, V3 and Kimi-K2 read."""

    intermediate_size: Size
    moe_intermediate_size: Size
    first_k_dense_replace: int = Field(ge=0, le=MAX_LAYERS)
    moe_layer_freq: int = Field(default=1, ge=0, le=MAX_LAYERS)
    n_routed_experts: Count
    n_shared_experts: int = Field(ge=0, le=64)
    n_group: int | None = Field(ge=1, le=65_536)  # null where experts are chosen without groups
    topk_group: int | None = Field(default=None, ge=1, le=65_536)  # without it a token may go to all groups
    q_lora_rank: int | None = Field(ge=1, le=1_000_000)
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        is_moe = [index >= self.first_k_dense_replace for index in range(self.num_hidden_layers)]
        groups = self.n_group or 1
        uneven = self.uneven_groups(groups, (self.topk_group if self.n_group else None) or 1, self.n_routed_experts)
        return self.together(
            self.none_left(f"first_k_dense_replace ({self.first_k_dense_replace})", is_moe),
            uneven,
            self.too_many_chosen("n_routed_experts", self.n_routed_experts),
        )

    def unplanned(self) -> str | None:
        """Return that layers with experts do not follow each other, where it is so."""
        freq = self.moe_layer_freq
        return None if freq == 1 else f"by moe_layer_freq ({freq}), dense layers stand among MoE layers"

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers, dense ones first."""
        num_moe = self.num_hidden_layers - self.num_dense
        return layers_of(self.attention, self.num_dense, Dense(self.intermediate_size), [self.experts()] * num_moe)

    def draft_layer(self) -> Layer | None:
        """Return the layer of an MTP module, which is like the main model's last."""
        return self.layers()[-1] if self.num_nextn_predict_layers else None

    def experts(self) -> Experts:
        """Return the FFN of each MoE layer."""
        return Experts(
            num_routed=self.n_routed_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.moe_intermediate_size,
            num_shared=self.n_shared_experts,
            shared_intermediate_size=self.moe_intermediate_size,
            num_groups=self.n_group or 1,
            num_groups_per_token=self.topk_group if self.n_group and self.topk_group else self.n_group or 1,
        )

    def attention(self, index: int) -> LatentAttention:
        """Return the attention of layer `index`."""
        indexer = self.indexer(index)
        return LatentAttention(
            num_heads=self.num_attention_heads,
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            is_sparse=indexer is not None or self.is_sparse,
            indexer=indexer,
            num_picked=self.num_picked,
        )

    @property
    def num_dense(self) -> int:
        """Return how many layers are dense."""
        return self.first_k_dense_replace

    @property
    def is_sparse(self) -> bool:
        """Return whether attention reads only what an indexer picked."""
        return False

    @property
    def num_picked(self) -> int | None:
        """Return how many tokens a query reads of those before it, where an indexer picks them."""
        return None

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`, where it has one of its own."""
        return None


class IndexedShapes(LatentShapes):
    """The keys that V3.2 reads besides."""

    index_n_heads: Count
    index_head_dim: Size
    index_topk: Count = 2048  # of ModelArgs: github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/model.py
    mlp_layer_types: PerLayer[str] | None = None

    @property
    def is_sparse(self) -> bool:
        """Return True: every layer's attention is sparse."""
        return True

    def broken(self) -> str | None:
        """Return how the shapes do not fit together."""
        return super().broken() or self.miscounted(mlp_layer_types=self.mlp_layer_types) or self._two_orders()

    @property
    def num_picked(self) -> int | None:
        """Return how many tokens a query reads."""
        return self.index_topk

    def indexer(self, index: int) -> Indexer | None:
        """Return the indexer of layer `index`: each layer has one."""
        return Indexer(self.index_n_heads, self.index_head_dim)

    def _two_orders(self) -> str | None:
        """Return that the list and the number of dense layers disagree, where it is so."""
        types, dense = self.mlp_layer_types, self.first_k_dense_replace
        if types is None or [each == "dense" for each in types] == [index < dense for index in range(len(types))]:
            return None
        return f"mlp_layer_types and first_k_dense_replace ({dense}) disagree on which layers are dense"

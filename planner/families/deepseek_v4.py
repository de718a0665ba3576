"""DeepSeek-V4: compressed attention that differs by layer, and experts in every layer. A hash routes the first layers.

Source of the keys: transformers `DeepseekV4Config`, which also reads the keys of published files (`compress_ratios`,
`num_hash_layers`, `qk_rope_head_dim`). Lists in published files have further entries for the MTP layers.
"""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from planner.facts.attention.compressed import CompressedAttention
from planner.facts.attention.latent import Indexer
from planner.facts.model import MAX_LAYERS, Experts, Layer
from planner.families.shapes import Count, Entry, PerLayer, Shapes, Size

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
INDEXED_RATIO = 4  # layers with this compression ratio have an indexer, which picks entries
MAX_RATES = 64  # entries of `compress_rates`, one per kind of layer; published files have three
INDEX_TOPK = 512  # if the file does not say: sglang 0.5.23 configs/deepseek_v4.py
HASH_LAYERS = 3  # if the file does not say: transformers' default_num_hash_layers


class DeepseekV4Shapes(Shapes):
    """The keys of `config.json` that DeepSeek-V4 reads."""

    moe_intermediate_size: Size
    n_routed_experts: Count
    n_shared_experts: int = Field(ge=1, le=1)
    head_dim: Size
    qk_rope_head_dim: Size | None = None
    partial_rotary_factor: float | None = Field(default=None, gt=0, lt=1)
    q_lora_rank: Size
    o_groups: Count
    o_lora_rank: Size
    sliding_window: Size
    compress_ratios: PerLayer[Entry] | None = None
    layer_types: PerLayer[str] | None = None
    compress_rates: dict[str, Entry] | None = Field(default=None, max_length=MAX_RATES)
    num_hash_layers: int = Field(default=HASH_LAYERS, ge=0, le=MAX_LAYERS)
    mlp_layer_types: PerLayer[str] | None = None
    index_n_heads: Count
    index_head_dim: Size
    index_topk: Count = INDEX_TOPK
    hc_mult: int = Field(ge=1, le=64)

    per_layer: ClassVar[tuple[str, ...]] = ("layer_types", "mlp_layer_types")

    def contradiction(self) -> str | None:
        """Explain a missing key, a list of the wrong length, or an unknown value; return None if there is none."""
        ratios = self.compress_ratios
        if self.layer_types is None and ratios is None:
            return "neither compress_ratios nor layer_types says how each layer compresses"
        return (
            self.explain_wrong_length("compress_ratios", ratios and ratios[: self.num_hidden_layers])
            or self._explain_unknown()
        )

    def layers(self) -> tuple[Layer, ...]:
        """Return the main model's layers, which are all MoE layers.

        `is_hashed` marks the layers that choose experts by a hash.
        """
        hashed = zip(super().layers(), self._hashed(), strict=True)
        return tuple(replace(layer, ffn=replace(self.experts(), is_hashed=each)) for layer, each in hashed)

    def draft_layer(self) -> Layer | None:
        """Return the layer of an MTP module, which reads a window alone; None if there is no module.

        Source: sglang 0.5.23 models/deepseek_v4_nextn.py, COMPRESS_RATIO_NEXTN_LAYER.
        """
        return Layer(self._attention(0), self.experts()) if self.num_nextn_predict_layers else None

    @property
    def num_streams(self) -> int:
        """Return the number of residual streams."""
        return self.hc_mult

    def attention(self, index: int) -> CompressedAttention:
        """Return the attention of layer `index`."""
        return self._attention(self._ratios()[index])

    def experts(self) -> Experts:
        """Return the experts of one layer."""
        return Experts(
            num_routed=self.n_routed_experts,
            num_per_token=self.num_experts_per_tok,
            intermediate_size=self.moe_intermediate_size,
            num_shared=self.n_shared_experts,
            shared_intermediate_size=self.moe_intermediate_size,
        )

    def _attention(self, ratio: int) -> CompressedAttention:
        is_indexed = ratio == INDEXED_RATIO
        return CompressedAttention(
            num_heads=self.num_attention_heads,
            head_dim=self.head_dim,
            rope_head_dim=self.qk_rope_head_dim or int(self.head_dim * (self.partial_rotary_factor or 0)),
            q_lora_rank=self.q_lora_rank,
            o_groups=self.o_groups,
            o_lora_rank=self.o_lora_rank,
            window=self.sliding_window,
            ratio=ratio,
            indexer=Indexer(self.index_n_heads, self.index_head_dim) if is_indexed else None,
            num_picked=self.index_topk if is_indexed else None,
        )

    def _ratios(self) -> list[int]:
        if self.layer_types is None:
            return (self.compress_ratios or [])[: self.num_hidden_layers]
        return [(RATIOS | (self.compress_rates or {}))[each] for each in self.layer_types]

    def _hashed(self) -> list[bool]:
        if self.mlp_layer_types is None:
            return [index < self.num_hash_layers for index in range(self.num_hidden_layers)]
        return [each == "hash_moe" for each in self.mlp_layer_types]

    def _explain_unknown(self) -> str | None:
        """Explain a ratio, a kind of layer or a size that the family does not know; return None if all are known."""
        if self.qk_rope_head_dim is None and self.partial_rotary_factor is None:
            return "neither qk_rope_head_dim nor partial_rotary_factor says how much of a head is rotated"
        if self.qk_rope_head_dim is not None and self.qk_rope_head_dim >= self.head_dim:
            return f"qk_rope_head_dim ({self.qk_rope_head_dim}) leaves nothing of head_dim ({self.head_dim})"
        strange = sorted({each for each in self.layer_types or [] if each not in RATIOS})
        if strange:
            return f"layer_types has {strange[0][:40]}, which is none of {', '.join(RATIOS)}"
        strange_ratios = sorted({each for each in self._ratios() if each not in RATIOS.values()})
        if strange_ratios:
            return f"{strange_ratios[0]} is not one of the family's ratios: {', '.join(map(str, RATIOS.values()))}"
        return None

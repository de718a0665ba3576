"""Bytes of a model's weights by part, as one GPU holds them under expert parallelism.

Attention, shared experts, dense layers, gates and embeddings are on every GPU, whole or in parts (`dense_tp`); routed
experts are spread, so that their part is counted in slots: one physical expert over all MoE layers.

Worked example, DeepSeek-V3 in FP8 (61 layers, 58 of them MoE layers):
    attention   61 x 187.1 M, and kv_b in BF16: it is absorbed into core attention   12.4 GB
    dense       3 x 396 M                                                             1.2 GB
    shared      58 x 44.04 M                                                          2.6 GB
    gates       58 x 256 x 7168 in BF16                                               0.2 GB
    embedding   input and output, in BF16                                             3.7 GB
    slot        58 x 44.04 M with an FP32 scale for each 128 x 128 block              2.554 GB
so EP144 with two slots a GPU holds 20.1 + 2 x 2.554 = 25.2 GB.

Norms and biases are left out: 0.002 % of the whole. The MTP layer is not loaded.

What a precision says of each part, as the checkpoints are made that are named so:
    fp8     all matrices in FP8
    fp4     NVFP4, an FP8 scale for 16 weights: FFNs and attention's output; the rest of attention in BF16
    w4a8    routed experts in INT4, a BF16 scale for 128 weights; the rest in FP8

Source of the matrices: github.com/deepseek-ai/DeepSeek-V3 and DeepSeek-V3.2-Exp, inference/model.py; what stays in
BF16: `modules_to_not_convert` of FP8 checkpoints, and open-infra-index, day 6 (core attention in BF16); fp4:
github.com/NVIDIA/Model-Optimizer 0bb92910 examples/deepseek/ptq.py; w4a8: github.com/sgl-project/sglang 007baab6
python/sglang/srt/layers/quantization/w4afp8.py.
"""

from dataclasses import dataclass
from typing import Literal

from planner.facts.catalog import Attention, Indexer, LatentAttention, Model
from planner.facts.terms import Precision
from planner.spec.precision import wide_bytes

__all__ = ["Weights", "weights_of"]

BLOCK_SIDE = 128
FP8_BLOCK = BLOCK_SIDE * BLOCK_SIDE  # weights that share a scale
FP8_SCALE_BYTES = 4
FP4_BLOCK = 16
FP4_SCALE_BYTES = 1
INT4_BLOCK = 128
INT4_SCALE_BYTES = 2

Format = Literal["fp32", "bf16", "fp8", "nvfp4", "int4"]


@dataclass(frozen=True)
class _Formats:
    """What a precision keeps matrices in."""

    attention: Format
    output: Format  # of attention
    ffn: Format  # of dense layers and shared experts
    expert: Format  # routed


FORMATS: dict[Precision, _Formats] = {
    "fp32": _Formats("fp32", "fp32", "fp32", "fp32"),
    "bf16": _Formats("bf16", "bf16", "bf16", "bf16"),
    "fp8": _Formats("fp8", "fp8", "fp8", "fp8"),
    "fp4": _Formats("bf16", "nvfp4", "nvfp4", "nvfp4"),
    "w4a8": _Formats("fp8", "fp8", "fp8", "int4"),
}


@dataclass(frozen=True)
class Weights:
    """Bytes of one GPU's weights by part; `slot` is one physical expert over all MoE layers."""

    attention: int
    dense: int
    shared: int
    gates: int
    embedding: int
    slot: int

    @property
    def resident(self) -> int:
        """The same on every GPU: 20.1 GB for DeepSeek-V3 in FP8."""
        return self.attention + self.dense + self.shared + self.gates + self.embedding

    def total(self, num_slots: int) -> int:
        """With `num_slots` routed experts of each MoE layer."""
        return self.resident + num_slots * self.slot


def weights_of(model: Model, precision: Precision, dense_tp: int = 1) -> Weights:
    """The parts of `model` whose matrices are kept in `precision`, one GPU's of `dense_tp` that share what is dense.

    A part of a matrix is whole blocks of a scale, so that of a small one several GPUs have the same.
    """
    wide, formats = wide_bytes(precision), FORMATS[precision]
    expert = _ffn_weights(model.hidden_size, model.expert_intermediate_size)
    dense = _ffn_weights(model.hidden_size, _part(model.dense_intermediate_size, dense_tp))
    shared = _ffn_weights(model.hidden_size, _part(model.expert_intermediate_size, dense_tp))
    gates = model.num_moe_layers * model.hidden_size * model.num_routed_experts
    num_embeddings = 1 if model.ties_embeddings else 2  # tokens in, logits out
    return Weights(
        attention=model.num_layers * _attention_bytes(model.attention, model.hidden_size, precision),
        dense=model.num_dense_layers * _matrix_bytes(dense, formats.ffn),
        shared=model.num_moe_layers * model.num_shared_experts * _matrix_bytes(shared, formats.ffn),
        gates=gates * wide,
        embedding=num_embeddings * -(-model.vocab_size // dense_tp) * model.hidden_size * wide,
        slot=model.num_moe_layers * _matrix_bytes(expert, formats.expert),
    )


def _part(size: int, num_gpus: int) -> int:
    """One GPU's part of a dimension."""
    return min(size, -(-size // (num_gpus * BLOCK_SIDE)) * BLOCK_SIDE) if num_gpus > 1 else size


def _ffn_weights(hidden_size: int, intermediate_size: int) -> int:
    return 3 * hidden_size * intermediate_size  # gate, up, down


def _attention_bytes(attention: Attention, hidden_size: int, precision: Precision) -> int:
    """Of one layer: 187.1 M weights for DeepSeek-V3."""
    if isinstance(attention, LatentAttention):
        return _latent_attention_bytes(attention, hidden_size, precision)
    formats = FORMATS[precision]
    heads = attention.num_heads + 2 * attention.num_kv_heads  # queries, keys and values
    output = attention.num_heads * attention.head_dim * hidden_size
    return _matrix_bytes(heads * attention.head_dim * hidden_size, formats.attention) + _matrix_bytes(
        output, formats.output
    )


def _latent_attention_bytes(attention: LatentAttention, hidden_size: int, precision: Precision) -> int:
    heads = attention.num_heads
    query_dim = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
    rank = attention.q_lora_rank
    query = hidden_size * query_dim if rank is None else rank * (hidden_size + query_dim)
    latent = hidden_size * (attention.kv_lora_rank + attention.qk_rope_head_dim)
    expand = attention.kv_lora_rank * heads * (attention.qk_nope_head_dim + attention.v_head_dim)  # kv_b
    output = heads * attention.v_head_dim * hidden_size
    indexed = _indexer_bytes(attention.indexer, rank or hidden_size, hidden_size, precision)
    formats = FORMATS[precision]
    narrow = _matrix_bytes(query + latent, formats.attention) + _matrix_bytes(output, formats.output)
    return narrow + expand * wide_bytes(precision) + indexed


def _indexer_bytes(indexer: Indexer | None, query_rank: int, hidden_size: int, precision: Precision) -> int:
    if indexer is None:
        return 0
    queries = query_rank * indexer.num_heads * indexer.head_dim
    keys = hidden_size * indexer.head_dim
    head_weights = hidden_size * indexer.num_heads
    return _matrix_bytes(queries + keys, FORMATS[precision].attention) + head_weights * wide_bytes(precision)


def _matrix_bytes(num_weights: int, kept_in: Format) -> int:
    """With scales."""
    if kept_in == "fp8":
        return num_weights + FP8_SCALE_BYTES * num_weights // FP8_BLOCK
    if kept_in == "nvfp4":
        return num_weights // 2 + FP4_SCALE_BYTES * num_weights // FP4_BLOCK
    if kept_in == "int4":
        return num_weights // 2 + INT4_SCALE_BYTES * num_weights // INT4_BLOCK
    return num_weights * {"bf16": 2, "fp32": 4}[kept_in]

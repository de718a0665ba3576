"""The bytes of a model's weights on one GPU, by part, under expert parallelism.

Attention, shared experts, dense layers, gates and embeddings are on every GPU, whole or in parts (`dense_tp`). Routed
experts are spread over GPUs and counted in slots: a slot is one physical expert over all MoE layers.

Worked example, DeepSeek-V3 in FP8 (61 layers, 58 of them MoE layers):
    attention   61 x 187.1 M, and kv_b in BF16: it is absorbed into core attention   12.4 GB
    dense       3 x 396 M                                                             1.2 GB
    shared      58 x 44.04 M                                                          2.6 GB
    gates       58 x 256 x 7168 in BF16                                               0.2 GB
    embedding   input and output, in BF16                                             3.7 GB
    slot        58 x 44.04 M with an FP32 scale for each 128 x 128 block              2.554 GB
so EP144 with two slots a GPU holds 20.1 + 2 x 2.554 = 25.2 GB.

Norms are left out: they are 0.002 %. If tokens are drafted, an MTP module is loaded: one more layer.

The format of each part by precision, as in checkpoints with these names:
    fp8         all matrices in FP8
    fp4         NVFP4, an FP8 scale for 16 weights: FFNs and attention's output; the rest of attention in BF16
    fp8_fp4     routed experts in NVFP4; the rest in FP8
    mxfp4       routed experts in MXFP4, a one-byte scale for 32 weights; the rest in BF16
    fp8_mxfp4   the same experts; the rest in FP8
    w4a8        routed experts in INT4, a BF16 scale for 128 weights; the rest in FP8
    w4a16       routed experts in INT4, a BF16 scale for 32 weights; the rest in BF16
If the checkpoint's own files give a module's format, that counts (`families/quantised.py`).

Source of the matrices: github.com/deepseek-ai/DeepSeek-V3 and DeepSeek-V3.2-Exp, inference/model.py; what stays in
BF16: `modules_to_not_convert` of FP8 checkpoints, and open-infra-index, day 6 (core attention in BF16); fp4:
github.com/NVIDIA/Model-Optimizer 0bb92910 examples/deepseek/ptq.py; w4a8: github.com/sgl-project/sglang 007baab6
python/sglang/srt/layers/quantization/w4afp8.py; mxfp4, fp8_mxfp4 and w4a16: the quantization_config of gpt-oss,
DeepSeek-V4 and Kimi-K2.5, in the files that `planner/families/published.json` names, and MX's specification (32 values
share a power of two).
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from planner.facts.attention.kind import Matrix, Part
from planner.facts.attention.latent import LatentAttention
from planner.facts.model import Dense, Layer, Model
from planner.facts.quantisation import FORMATS, Format, Formats, wide_bytes
from planner.facts.terms import Precision

BLOCK_SIDE = 128
MXFP4_TILE = 256, 128  # of hidden channels, and of an expert's
HASHED_BYTES = 8  # of each expert number in a hash table: transformers 5.23.0, DeepseekV4HashRouter

# format -> bits of a weight, number of weights that share a scale (0: scales are not counted), bytes of the scale
SIZES: dict[Format, tuple[int, int, int]] = {
    "fp32": (32, 0, 0),
    "bf16": (16, 0, 0),
    "fp8": (8, BLOCK_SIDE * BLOCK_SIDE, 4),
    "fp8_plain": (8, 0, 0),  # one scale for a matrix or a channel
    "mxfp8": (8, 32, 1),
    "nvfp4": (4, 16, 1),
    "mxfp4": (4, 32, 1),
    "int4": (4, 128, 2),
    "int4_by_32": (4, 32, 2),
    "int4_by_64": (4, 64, 2),
}


@dataclass(frozen=True)
class Weights:
    """The bytes of one GPU's weights by part; `slot` is for one physical expert in all MoE layers together."""

    attention: int
    dense: int
    shared: int
    gates: int
    embedding: int
    towers: int  # encoders of multimodal models; 0 if the engine does not load them
    slot: int
    absorbed: int = 0  # matrices that other engines make of latent attention's expansion and keep beside it

    @property
    def resident(self) -> int:
        """The bytes of all parts but expert slots, equal on every GPU: 20.1 GB for DeepSeek-V3 in FP8."""
        return self.attention + self.absorbed + self.dense + self.shared + self.gates + self.embedding + self.towers

    def total(self, num_slots: int) -> int:
        """Return the bytes of one GPU's weights with `num_slots` routed experts in each MoE layer."""
        return self.resident + num_slots * self.slot


@lru_cache(maxsize=256)
def weights_of(model: Model, precision: Precision, dense_tp: int = 1) -> Weights:
    """Return the bytes of one GPU's weights of `model` in `precision`, if `dense_tp` GPUs share dense matrices.

    A GPU's part of a matrix consists of whole scale blocks, so several GPUs may hold the same part of a small matrix.
    """
    formats, found, wide = FORMATS[precision], Counter[Part](), wide_bytes(precision)
    is_own = precision == model.weights_in
    for matrix, count in _dense_part(model, dense_tp).matrices():
        kept_in = matrix.kept_in if is_own else None
        found[matrix.part] += count * _matrix_bytes(matrix, kept_in, formats, wide)
    return Weights(
        attention=found["attention"],
        dense=found["dense"],
        shared=found["shared"],
        gates=found["gates"] + _hash_tables(model),
        embedding=found["embedding"],
        towers=found["towers"],
        slot=found["experts"],
    )


def with_expansion(weights: Weights, model: Model, precision: Precision) -> Weights:
    """Return `weights` with latent attention's expansion (kv_b) as the checkpoint has it, 1.0 GB for DeepSeek-V3.

    SGLang and vLLM keep the expansion beside the two BF16 matrices for absorption (2.0 GB) that they make of it, and
    that `absorbed` counts. Sources: sglang 0.5.23 models/deepseek_v2.py, post_load_weights; vllm 0.33.0
    model_executor/layers/attention/mla_attention.py, process_weights_after_loading.
    """
    expansion = sum(
        count * layer.attention.expansion
        for layer, count in model.kinds.items()
        if isinstance(layer.attention, LatentAttention)
    )
    formats, wide = FORMATS[precision], wide_bytes(precision)
    kept = _matrix_bytes(Matrix("attention", expansion, "attention"), None, formats, wide)
    made = _matrix_bytes(Matrix("attention", expansion, "wide"), None, formats, wide)
    return replace(weights, attention=weights.attention - made + kept, absorbed=made)


def with_padding(weights: Weights, model: Model, precision: Precision) -> Weights:
    """Return `weights` with experts in MXFP4 padded to the tiles of vLLM's kernels: 8.6 % more for gpt-oss-120b.

    Source: vllm 0.33.0 model_executor/layers/fused_moe/oracle/mxfp4.py, Marlin and TensorRT-LLM.
    """
    if FORMATS[precision].expert != "mxfp4":
        return weights
    sizes = (model.hidden_size, MXFP4_TILE[0]), (model.experts.intermediate_size, MXFP4_TILE[1])
    share = math.prod(Fraction(-(-size // tile) * tile, size) for size, tile in sizes)
    return replace(weights, slot=int(weights.slot * share))


def _dense_part(model: Model, dense_tp: int) -> Model:
    """Return the model with only the part of the dense matrices that one of `dense_tp` GPUs holds."""
    if dense_tp == 1:
        return model
    part = model.with_layers(lambda layer: _split_ffn(layer, dense_tp))
    return replace(part, vocab_size=-(-model.vocab_size // dense_tp))


def _split_ffn(layer: Layer, dense_tp: int) -> Layer:
    ffn = layer.ffn
    if isinstance(ffn, Dense):
        return replace(layer, ffn=Dense(_split_dimension(ffn.intermediate_size, dense_tp)))
    return replace(
        layer, ffn=replace(ffn, shared_intermediate_size=_split_dimension(ffn.shared_intermediate_size, dense_tp))
    )


def _split_dimension(size: int, num_gpus: int) -> int:
    """Return one GPU's part of a dimension that `num_gpus` GPUs share, rounded up to whole scale blocks."""
    return min(size, -(-size // (num_gpus * BLOCK_SIDE)) * BLOCK_SIDE) if num_gpus > 1 else size


def _hash_tables(model: Model) -> int:
    """Return the bytes of the tables that map tokens to experts in hashed layers."""
    return sum(model.are_hashed) * model.vocab_size * model.num_experts_per_token * HASHED_BYTES


def _matrix_bytes(matrix: Matrix, kept_in: Format | None, formats: Formats, wide: int) -> int:
    """Return the bytes of a matrix with its scales; `kept_in` is the format that the checkpoint gives it, if any."""
    if kept_in is None and matrix.role in ("wide", "fp32"):
        return matrix.num_weights * (wide if matrix.role == "wide" else 4)
    bits, block, scale = SIZES[kept_in or formats.of(matrix.role)]
    return matrix.num_weights * bits // 8 + (scale * matrix.num_weights // block if block else 0)

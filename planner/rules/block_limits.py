"""Reject an `attention_tp` that would split a 128 x 128 block of an FP8 matrix: the engine fails while loading it.

Engines split these matrices between the `n` GPUs of an attention group:
    attention       the queries, n ways
    dense layers    n ways; in a unit of several groups SGLang keeps them whole (`--moe-dense-tp-size 1`)
    shared experts  n ways in a unit of one group; otherwise each GPU holds them whole
Routed experts are never split: each is on one GPU.

With expert parallelism on NVIDIA GPUs, SGLang fuses shared experts with routed ones for one model only, qwen3_next.

Sources: sglang 0.5.23 layers/quantization/fp8.py (validate_block_quant_shapes), models/deepseek_v2.py, qwen2_moe.py,
qwen3_next.py, glm4_moe.py and minimax_m3.py (shared experts, and shared_experts_fusion_disable_reason); vllm 0.33.0
model_executor/layers/quantization/utils/fp8_utils.py (validate_fp8_block_shape) and models/deepseek_v2.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from planner.facts.attention.kind import Matrix
from planner.facts.attention.latent import LatentAttention
from planner.facts.engines import OURS
from planner.facts.model import Layer, Model
from planner.facts.quantisation import FORMATS
from planner.facts.terms import EngineName, Phase, Precision
from planner.problems.finding import Finding
from planner.problems.fix import Fix, nearest
from planner.rules.attention import attention_sizes
from planner.rules.exchange_limits import supports_unit_size
from planner.rules.rule import Candidate
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec

BLOCK = 128
QUERIES = ("self_attn.q_proj", "self_attn.q_b_proj")  # latent attention's; matrices before them are never split
FUSES_SHARED = ("qwen3_next",)  # if a shared expert is as wide as a routed one
BlockMatrices = Sequence[tuple[Layer, Matrix]]


@dataclass(frozen=True)
class _Cut:
    """The channels of a part of the model, and the number of GPUs that they are split between."""

    part: str
    channels: int
    num_gpus: int


def shards_are_whole_blocks(c: Candidate) -> Iterator[Finding]:
    """Reject an `attention_tp` that would split a 128 x 128 block of an FP8 matrix."""
    spec = c.resolved
    for phase in spec.phases:
        cut = _find_split_block(spec, phase)
        if cut is not None:
            section, engine = spec.phase(phase), f"{spec.written.engine_name} {spec.written.engine_version}"
            rule = (
                f"S772 must leave each GPU whole blocks of {BLOCK} channels to run on {engine} in {section.precision}"
            )
            each = f"{cut.channels / cut.num_gpus:,g} of the {cut.channels:,} channels of its {cut.part}"
            reason = f"each of {cut.num_gpus} GPUs would have {each}, and a block of FP8 has one scale"
            yield Finding(f"{phase}.attention_tp", section.attention_tp, rule, reason, _fix(spec, phase))


def keeps_blocks(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine splits no 128 x 128 block of the FP8 matrices of `phase`."""
    return _find_split_block(spec, phase) is None


def _find_split_block(spec: ResolvedSpec, phase: Phase) -> _Cut | None:
    """Return the first split that cuts a block, or None. The bundled runtime splits no matrix."""
    section, engine = spec.phase(phase), spec.written.engine_name
    if engine == OURS:
        return None
    block_matrices = _find_block_matrices(spec.model, section.precision)
    cuts = chain(
        _cut_dense_layers(block_matrices, section, engine),
        _cut_shared_experts(block_matrices, spec.model, section, engine),
        _cut_queries(block_matrices, section),
    )
    return next((each for each in cuts if each.channels % (BLOCK * each.num_gpus)), None)


@lru_cache(maxsize=64)
def _find_block_matrices(model: Model, precision: Precision) -> BlockMatrices:
    """Return (layer, matrix) of all matrices that are stored as FP8 in blocks if the phase has `precision`.

    A checkpoint may keep some matrices in other formats.
    """
    is_own = precision == model.weights_in
    return [
        (layer, matrix)
        for layer in model.kinds
        for matrix in layer.matrices(model.hidden_size)
        if matrix.module and ((matrix.kept_in if is_own else None) or FORMATS[precision].of(matrix.role)) == "fp8"
    ]


def _cut_dense_layers(block_matrices: BlockMatrices, section: PhaseSpec, engine: EngineName) -> Iterator[_Cut]:
    """Yield how the dense layers' matrices are split, once for each number of channels.

    Unsplit matrices are yielded only for SGLang. It checks them too, because it joins two matrices.
    """
    is_cut = section.ep_size == section.attention_tp or engine == "vllm"
    num_gpus = section.attention_tp if is_cut else 1
    for channels in sorted({layer.ffn.intermediate_size for layer, each in block_matrices if each.part == "dense"}):
        if num_gpus > 1 or engine == "sglang":
            yield _Cut("dense layers", channels, num_gpus)


def _cut_shared_experts(
    block_matrices: BlockMatrices, model: Model, section: PhaseSpec, engine: EngineName
) -> Iterator[_Cut]:
    experts, num_gpus = model.experts, section.attention_tp
    channels = experts.num_shared * experts.shared_intermediate_size
    is_fused = engine == "sglang" and model.model_type in FUSES_SHARED and channels == experts.intermediate_size
    if num_gpus == section.ep_size > 1 and not is_fused and any(each.part == "shared" for _, each in block_matrices):
        yield _Cut("shared experts", channels, num_gpus)


def _cut_queries(block_matrices: BlockMatrices, section: PhaseSpec) -> Iterator[_Cut]:
    """Yield how the queries of latent attention are split. In other attention every head is made of whole blocks."""
    kinds = dict.fromkeys(layer.attention for layer, each in block_matrices if each.module in QUERIES)
    for each in kinds if section.attention_tp > 1 else ():
        if isinstance(each, LatentAttention):
            head = each.qk_nope_head_dim + each.qk_rope_head_dim
            yield _Cut("queries", each.num_heads * head, section.attention_tp)


def _fix(spec: ResolvedSpec, phase: Phase) -> Fix | str:
    """Return a fix with the largest `attention_tp` below the present one that splits no block in this unit.

    If none does, return words that advise smaller units or another precision.
    """
    section, per_node = spec.phase(phase), spec.cluster.gpus_per_node
    sizes = [size for size in attention_sizes(section.ep_size, per_node, spec.model) if size < section.attention_tp]
    for size in reversed(sizes):
        tried = spec.with_numbers(phase, {"attention_tp": size})
        if keeps_blocks(tried, phase) and supports_unit_size(tried, phase):
            return nearest(size)
    for size in reversed(sizes):
        if keeps_blocks(spec.with_numbers(phase, {"ep_size": size, "attention_tp": size}), phase):
            return f"plan units of {size} GPUs that all share attention"
    return "plan it in another precision"

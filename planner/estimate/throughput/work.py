"""Count the operations and bytes that one token takes in each kind of layer, independent of any GPU.

Worked example, DeepSeek-V3 in FP8, one layer:
    projections in     queries, latents, and queries into the latent space       61.2 M weights
    core, decode       128 heads x 2 x (576 + 512)                               278,528 FLOP a token of KV, 1,152 B
    core, prefill      128 heads x 2 x (192 + 128)                               81,920 FLOP a token of the context
    projections out    out of the latent space, then to the hidden size          125.8 M weights
    expert             gate, up, down                                            44.04 M weights, 88.08 MFLOP

If GPUs share attention by heads, a `LayerWork` is one GPU's part. DeepSeek's sparse attention scores all tokens with
its indexer, a small attention in FP8, and reads only the tokens that the indexer picks, with absorbed latents in
prefill too: there a token's queries and results, 557 KB for 128 heads, are written and read around core attention.
MiniMax-M3's indexer has the number format of the KV, and picks blocks for each KV head. Linear attention reads no KV:
in decode each request's state is read and written, in prefill a scan takes so many operations a token whatever came
before. Compressed attention (DeepSeek-V4) reads a window's tokens and entries, and has several residual streams.

Sources: github.com/deepseek-ai/DeepSeek-V3 9b4e9788 inference/model.py (shapes, absorption); a matmul of n weights
takes 2 n operations a row; github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/model.py, class Indexer;
transformers 5.23.0 models/minimax_m3_vl/modeling_minimax_m3_vl.py, MiniMaxM3VLIndexer.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from planner.estimate.throughput.dimensions import Bytes, Flops
from planner.facts.attention.compressed import CompressedAttention
from planner.facts.attention.grouped import GroupedAttention
from planner.facts.attention.kind import Attention
from planner.facts.attention.latent import LatentAttention
from planner.facts.attention.linear import LinearAttention
from planner.facts.core_attention import Queries
from planner.facts.model import Dense, Experts, Layer, Model
from planner.facts.quantisation import FORMATS, KV_BYTES, Format, Formats, KvDtype, wide_bytes
from planner.facts.quantities import BITS_PER_BYTE
from planner.facts.terms import Precision
from planner.layout.dispatch import message_bytes
from planner.layout.weights import SIZES

FLOPS_PER_WEIGHT = 2
NOTHING, NO_FLOPS = Bytes(0.0), Flops(0.0)
SITES = 2  # of a layer, at which streams are mixed: before attention and before experts

PromptKind = Literal["whole", "sparse", "compressed"]  # of kernels for prompts' core attention


@dataclass(frozen=True)
class AttentionWork:
    """The work of one layer's attention. `into` is the work before core attention, `out` the work after it."""

    into_weights: Bytes
    into_flops: Flops  # per token
    out_weights: Bytes
    out_flops: Flops
    kept_in: Format  # of the projections' weights
    core_flops: Flops = NO_FLOPS  # in decode, per query and token of its KV
    core_bytes: Bytes = NOTHING  # in decode, per token of KV
    prompt_core_flops: Flops = NO_FLOPS  # in prefill, per query and token before it
    window: int | None = None  # most tokens, or compressed entries, that core attention reads; None: all
    index_flops: Flops = NO_FLOPS  # of the indexer, per query and token before it
    index_bytes: Bytes = NOTHING  # that the indexer reads, per token of KV
    index_in: Format = "fp8"  # of the indexer's matmuls
    fp8_core: frozenset[Queries] = frozenset()  # queries whose core attention is computed in FP8
    state_bytes: Bytes = NOTHING  # of a request's state, in linear attention
    scan_bytes: Bytes = NOTHING  # in prefill, per token: that linear attention's kernels read and write
    prompt_kind: PromptKind = "whole"
    query_bytes: Bytes = NOTHING  # in sparse prefill, per token: queries and results, written and read
    local: int = 0  # last tokens that core attention reads beside entries
    tokens_per_entry: int = 1


@dataclass(frozen=True)
class FfnWork:
    """The work of a dense layer's FFN, of the shared experts of a layer, or of one routed expert."""

    weights: Bytes
    flops: Flops  # per token
    kept_in: Format  # of the weights


@dataclass(frozen=True)
class LayerWork:
    """The work of one kind of layer. A dense layer has `dense`, a MoE layer `expert`."""

    attention: AttentionWork
    dense: FfnWork | None
    shared: FfnWork | None
    expert: FfnWork | None
    experts_per_token: int


@dataclass(frozen=True)
class ModelWork:
    """The operations and bytes of a model's layers, head and MTP module on one GPU."""

    layers: Mapping[LayerWork, int]  # kind of layer -> number in the main model
    hidden_size: int
    hidden_bytes: int  # of a token's residual stream
    intermediate_size: int  # of a routed expert
    head_weights: Bytes
    head_flops: Flops  # per answering token
    dispatch_bytes: int  # per token and copy
    combine_bytes: int
    stream_bytes: Bytes = NOTHING  # per token and layer: that hyper-connections read and write
    draft: LayerWork | None = None  # the layer of an MTP module
    draft_input: FfnWork | None = None  # the MTP module's projection of a state and an embedding


@lru_cache(maxsize=128)
def work_of(
    model: Model,
    precision: Precision,
    kv: KvDtype,
    attention_tp: int = 1,
    dense_tp: int = 1,
    fp8_core: frozenset[Queries] = frozenset(),
    least_heads: int = 1,
) -> ModelWork:
    """Return the work of one token in each kind of layer, for one GPU if `attention_tp` GPUs share attention heads.

    Kernels of sparse attention compute prompts with `least_heads` heads of a GPU or more.
    """
    dispatch, combine = message_bytes(model.hidden_size, precision)
    part, wide = model.one_of(attention_tp), wide_bytes(precision)

    def work(layer: Layer) -> LayerWork:
        own = layer.kept_in if precision == model.weights_in else None
        found = _layer_work(layer, model.hidden_size, own or FORMATS[precision], wide, KV_BYTES[kv], dense_tp)
        padded = _pad_heads(found.attention, layer.attention, least_heads)
        return replace(found, attention=replace(padded, fp8_core=fp8_core))

    layers: Counter[LayerWork] = Counter()
    for layer, count in part.kinds.items():
        layers[work(layer)] += count
    head = model.hidden_size * model.vocab_size / dense_tp
    draft = part.draft_layer
    return ModelWork(
        layers=layers,
        hidden_size=model.hidden_size,
        hidden_bytes=wide * model.hidden_size,
        intermediate_size=model.experts.intermediate_size,
        head_weights=Bytes(wide * head),
        head_flops=Flops(FLOPS_PER_WEIGHT * head),
        dispatch_bytes=dispatch,
        combine_bytes=combine,
        stream_bytes=_stream_bytes(model.num_streams, wide * model.hidden_size),
        draft=None if draft is None else work(draft),
        draft_input=None if draft is None else _draft_input(model.hidden_size, precision),
    )


def _layer_work(layer: Layer, hidden: int, formats: Formats, wide: int, kv_bytes: int, dense_tp: int) -> LayerWork:
    attention = _attention_work(layer.attention, hidden, formats, wide, kv_bytes)
    if isinstance(layer.ffn, Dense):
        weights = 3 * hidden * layer.ffn.intermediate_size / dense_tp
        return LayerWork(attention, _ffn_work(weights, formats.ffn), None, None, 0)
    experts: Experts = layer.ffn
    shared = 3 * hidden * experts.num_shared * experts.shared_intermediate_size / dense_tp
    routed = 3 * hidden * experts.intermediate_size
    return LayerWork(
        attention=attention,
        dense=None,
        shared=_ffn_work(shared, formats.ffn) if shared else None,
        expert=_ffn_work(routed, formats.expert),
        experts_per_token=experts.num_per_token,
    )


def _attention_work(attention: Attention, hidden: int, formats: Formats, wide: int, kv_bytes: int) -> AttentionWork:
    if isinstance(attention, LatentAttention):
        return _latent_work(attention, hidden, formats, wide, kv_bytes)
    if isinstance(attention, LinearAttention):
        return _linear_work(attention, hidden, formats)
    if isinstance(attention, CompressedAttention):
        return _compressed_work(attention, hidden, formats, wide)
    assert isinstance(attention, GroupedAttention)
    return _grouped_work(attention, hidden, formats, kv_bytes)


def _latent_work(each: LatentAttention, hidden: int, formats: Formats, wide: int, kv_bytes: int) -> AttentionWork:
    """Return the work of latent attention (MLA) in one layer.

    Decode projects queries into the latent space; prefill uses the same weights to expand latents to keys.
    """
    heads, latent = each.num_heads, each.kv_lora_rank
    query = heads * (each.qk_nope_head_dim + each.qk_rope_head_dim)
    rank = each.q_lora_rank
    queries = hidden * query if rank is None else rank * (hidden + query)
    into = queries + hidden * (latent + each.qk_rope_head_dim)
    absorb, expand = heads * each.qk_nope_head_dim * latent, heads * each.v_head_dim * latent
    out = heads * each.v_head_dim * hidden
    index, scorer = each.indexer, 0
    if index is not None:
        into += (rank or hidden) * index.num_heads * index.head_dim + hidden * (index.head_dim + index.num_heads)
        scorer = FLOPS_PER_WEIGHT * index.num_heads * index.head_dim
    core = Flops(FLOPS_PER_WEIGHT * heads * (2 * latent + each.qk_rope_head_dim))
    expanded = Flops(FLOPS_PER_WEIGHT * heads * (each.qk_nope_head_dim + each.qk_rope_head_dim + each.v_head_dim))
    return AttentionWork(
        into_weights=Bytes(_weight_bytes(into, formats.attention) + wide * absorb),
        into_flops=Flops(FLOPS_PER_WEIGHT * (into + absorb)),
        out_weights=Bytes(_weight_bytes(out, formats.output) + wide * expand),
        out_flops=Flops(FLOPS_PER_WEIGHT * (out + expand)),
        core_flops=core,
        core_bytes=Bytes(each.kv(kv_bytes).entry_bytes - (index.kv_bytes_per_token if index else 0)),
        prompt_core_flops=core if each.is_sparse else expanded,
        window=each.num_picked,
        kept_in=formats.attention,
        index_flops=Flops(scorer),
        index_bytes=Bytes(index.kv_bytes_per_token if index else 0),
        prompt_kind="sparse" if each.is_sparse else "whole",
        query_bytes=Bytes(2 * wide * heads * (2 * latent + each.qk_rope_head_dim) if each.is_sparse else 0),
    )


def _projections(into: float, out: float, formats: Formats) -> AttentionWork:
    """Return the work of attention's projections alone: of `into` weights before core attention, and `out` after it."""
    return AttentionWork(
        into_weights=Bytes(_weight_bytes(into, formats.attention)),
        into_flops=Flops(FLOPS_PER_WEIGHT * into),
        out_weights=Bytes(_weight_bytes(out, formats.output)),
        out_flops=Flops(FLOPS_PER_WEIGHT * out),
        kept_in=formats.attention,
    )


def _pad_heads(work: AttentionWork, attention: Attention, least_heads: int) -> AttentionWork:
    """Return `work` with prompts' core attention of `least_heads` heads, if the attention is sparse and has fewer."""
    if work.prompt_kind == "whole":
        return work
    more = max(1.0, least_heads / attention.num_heads)
    flops, num_bytes = Flops(work.prompt_core_flops * more), Bytes(work.query_bytes * more)
    return replace(work, prompt_core_flops=flops, query_bytes=num_bytes)


def _grouped_work(each: GroupedAttention, hidden: int, formats: Formats, kv_bytes: int) -> AttentionWork:
    size = each.head_dim
    into = (each.num_heads * (2 if each.has_gate else 1) + 2 * each.num_kv_heads) * size * hidden
    out = each.num_heads * size * hidden
    core = Flops(2 * FLOPS_PER_WEIGHT * each.num_heads * size)  # queries with keys, and weights with values
    index = each.indexer
    into += (index.num_heads + 1) * index.head_dim * hidden if index else 0
    return replace(
        _projections(into, out, formats),
        core_flops=core,
        core_bytes=Bytes(2 * each.num_kv_heads * size * kv_bytes),
        prompt_core_flops=core,
        window=index.num_picked if index else each.window,
        index_flops=Flops(FLOPS_PER_WEIGHT * index.num_heads * index.head_dim if index else 0.0),
        index_bytes=Bytes(index.head_dim * kv_bytes if index else 0.0),
        index_in="bf16",
    )


def _linear_work(each: LinearAttention, hidden: int, formats: Formats) -> AttentionWork:
    """Return the work of linear attention with a gated delta rule in one layer.

    A prompt's queries, keys and values are read and written by the convolution, then by the scan, which also writes the
    results. `scan_bytes` counts these reads and writes, in BF16.
    """
    values = each.num_value_heads * each.value_head_dim
    into = (each.conv_channels + values + 2 * each.num_value_heads) * hidden
    out = values * hidden
    return replace(
        _projections(into, out, formats),
        state_bytes=Bytes(each.kv(1).state_bytes),
        scan_bytes=Bytes(2 * (3 * each.conv_channels + values)),
    )


def _compressed_work(each: CompressedAttention, hidden: int, formats: Formats, wide: int) -> AttentionWork:
    """Return the work of compressed attention in one layer; compressors' and the indexer's matmuls count as FP8.

    A query reads the tokens of a window, and entries: all, or those that the indexer picks. Without entries it reads
    the window alone.
    """
    heads, size, ratio, index = each.num_heads, each.head_dim, each.ratio, each.indexer
    into = each.q_lora_rank * (hidden + heads * size) + hidden * size
    out = each.o_lora_rank * (heads * size + each.o_groups * hidden)
    into += (4 if index else 2) * size * hidden if ratio else 0
    into += each.q_lora_rank * index.num_heads * index.head_dim if index else 0
    into += hidden * (index.num_heads + 4 * index.head_dim) if index else 0
    core = Flops(2 * FLOPS_PER_WEIGHT * heads * size)
    return replace(
        _projections(into, out, formats),
        core_flops=core,
        core_bytes=Bytes(each.entry_bytes),
        prompt_core_flops=core,
        window=each.num_picked if ratio else each.window,
        index_flops=Flops(FLOPS_PER_WEIGHT * index.num_heads * index.head_dim if index else 0.0),
        index_bytes=Bytes(index.kv_bytes_per_token if index else 0.0),
        prompt_kind="compressed",
        query_bytes=Bytes(2 * wide * heads * 2 * size),
        local=each.window if ratio else 0,
        tokens_per_entry=ratio or 1,
    )


def _stream_bytes(streams: int, row: int) -> Bytes:
    """Return the bytes that hyper-connections move per token and layer; none with a single stream.

    At each site the streams are read and mixed to a layer's input, and read again and written with its output.
    """
    return Bytes(SITES * (3 * streams + 2) * row if streams > 1 else 0.0)


def _draft_input(hidden: int, precision: Precision) -> FfnWork:
    """Return the work of the projection in front of an MTP module, in BF16 or FP32.

    The projection maps a hidden state and an embedding to one hidden state.
    """
    return _ffn_work(2 * hidden * hidden, "fp32" if precision == "fp32" else "bf16")


def _ffn_work(weights: float, kept_in: Format) -> FfnWork:
    return FfnWork(Bytes(_weight_bytes(weights, kept_in)), Flops(FLOPS_PER_WEIGHT * weights), kept_in)


def _weight_bytes(weights: float, kept_in: Format) -> float:
    """Return the bytes of `weights` weights in the format `kept_in`, their scales included."""
    bits, block, scale = SIZES[kept_in]
    return weights * bits / BITS_PER_BYTE + (scale * weights / block if block else 0)

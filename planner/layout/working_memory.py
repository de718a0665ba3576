"""The memory of a rank beside weights and KV: activations of one step, and buffers of dispatch and combine.

SGLang reserves working memory by rules of its own, which may be more (`sglang_working_bytes`).

Both are upper bounds for the largest step that the limits allow, so a plan that fits never runs out of memory. Memory
that a runtime reuses between layers counts once: the largest of attention, dense layer, MoE layer and head, on top of
the residual stream. With overlap a step's tokens are split in two halves that take turns. While one half computes, the
other half holds only its residual stream, or its logits if it is done.

Worked example, DeepSeek-V3 in FP8, GB of 1e9 bytes:
    EP144 decode   2 slots x 144 x 64 rows, their experts 0.44, half of the logits 0.03, stream 0.01             0.48
    EP32 prefill   168,034 pairs of 8,192 tokens a rank: their results 2.41 and the sums of these 2.41; as many rows of
                   the other half 1.24; stream 0.70, shared experts 0.35, choices 0.06, logits 0.01              7.21

A prefill rank may receive more than its share of tokens. No map can limit the excess, so this assumes the worst
published imbalance without balancing. A decode rank has room for every token of the unit in each of its slots, because
low-latency kernels reserve that room.

If several GPUs share attention, `model` is one GPU's part (`Model.one_of`): each GPU computes all tokens of its group
with its own heads, and the group dispatches each token once.

Sources: github.com/deepseek-ai/DeepEP dd758caf csrc/legacy/config.hpp and deep_ep/buffers/legacy.py (buffers),
csrc/legacy/buffer.hpp (what dispatch returns), csrc/kernels/legacy/compiled.cuh (workspace, alignment); DeepSeek-V3
inference/model.py (activations); imbalance: DeepSeek-R1 on 32 GPUs, (max - mean) / mean of an iteration without
balancing, github.com/NVIDIA/TensorRT-LLM 956a4f23
docs/source/blogs/tech_blog/blog4_Scaling_Expert_Parallelism_in_TensorRT-LLM.md.
"""

import math

from planner.facts.attention.latent import LatentAttention
from planner.facts.exchange import NVLINK_PEERS
from planner.facts.model import Model
from planner.facts.quantisation import wide_bytes
from planner.facts.terms import Phase, Precision
from planner.layout.dispatch import SCALE_CHANNELS, decode_step_tokens, message_bytes
from planner.layout.layout import PhaseLayout
from planner.spec.phase import PhaseSpec

MAX_IMBALANCE = 1 + 1.564  # tokens that the fullest rank receives / the mean of all ranks

# Constants of DeepEP
CHANNELS = 10  # one for every two of 20 SMs
MAX_TOP_K = MAX_SCALES = 128
SOURCE_META_BYTES = 8
INT4_BYTES = 16  # CUDA's vector of four ints
BUFFER_ALIGNMENT = 128
WORKSPACE_BYTES = 32 * 2**20
GRANULE_BYTES = 2**29  # in which NVSHMEM allocates, because DeepEP sets NVSHMEM_CUMEM_GRANULARITY
# largest EP size -> tokens of a receive chunk over NVLink, and over RDMA rounded up to whole send chunks
CHUNK_TOKENS = {8: (256, 0), 16: (288, 140), 64: (288, 128), 96: (480, 132), 128: (560, 132), 160: (720, 132)}

# NCCL: github.com/ai-dynamo/aiconfigurator 095f58a5 systems/h100_sxm.yaml, nccl_mem of 8 GPUs
NCCL_BYTES = 411_041_792

# vLLM: requests of full length whose KV is expanded to BF16, and those whose indexer keys are gathered, for one step of
# prompts: github.com/vllm-project/vllm 60191e18 vllm/v1/attention/backends/mla/{flashmla_sparse,indexer}.py
EXPANDED_REQUESTS, GATHERED_REQUESTS = 5, 40

# Bytes for each expert that a received token chose. A rank keeps expert and weight as received and as sorted, and twice
# that while it sorts.
CHOICE_BYTES = 4 * (8 + 4)
# DeepGEMM pads each expert's rows to tiles: github.com/deepseek-ai/DeepGEMM 54e22612
# csrc/jit_kernels/heuristics/runtime.hpp
TILE_ROWS = 128

# Bytes of a value that a matmul reads. Values dispatched in BF16 are converted as they are read.
COMPUTE_BYTES: dict[Precision, int] = {
    "fp8": 1,
    "bf16": 2,
    "fp32": 4,
    "fp4": 2,
    "fp8_fp4": 2,
    "mxfp4": 2,
    "fp8_mxfp4": 2,
    "w4a8": 2,
    "w4a16": 2,
}
LOGIT_BYTES = 4
# vLLM's sampler: a logit in BF16, and in FP32 the logit, its probability and a random number. Sources: vllm 0.33.0
# v1/worker/gpu_model_runner.py, _dummy_sampler_run, and v1/sample/ops/topk_topp_sampler.py
VLLM_SAMPLER_BYTES = 2 + 3 * 4

# SGLang's own reserve
MIB = 2**20
LARGE_GPU_BYTES, LEAST_OF_LARGE = 60 * 2**30, 10 * 2**30
HEADROOM_SOURCE = "assumed: as if a group were a server; sglang 0.5.23 arg_groups/memory_hook.py"


def largest_step_field(phase: Phase) -> str:
    """Return the spec's field that limits the tokens of one rank's step. Longer prompts take several steps."""
    return "max_requests" if phase == "decode" else "max_batch_tokens"


def largest_step_tokens(phase: Phase, spec: PhaseSpec) -> int:
    """Return the most tokens of one rank's step. In mixed units the decode tokens beside prompts are not counted."""
    return decode_step_tokens(spec) if phase == "decode" else spec.max_batch_tokens


def fill_tiles(tokens: int, num_ranks: int) -> int:
    """Return `tokens` per rank, raised until the rows of a slot fill whole tiles.

    A slot has room for that many tokens of each of `num_ranks` ranks. DeepGEMM's masked matmuls write whole tiles, so
    the room of the bundled runtime ends with a tile (`expert_parallel/factory.py`).
    """
    step = TILE_ROWS // math.gcd(TILE_ROWS, num_ranks)
    return -(-tokens // step) * step


def activation_bytes(model: Model, layout: PhaseLayout, spec: PhaseSpec, dispatched: int) -> int:
    """Return the bytes of activations in one rank's largest step.

    `dispatched` is the number of tokens per rank that low-latency buffers have room for.
    """
    answering = decode_step_tokens(spec)
    tokens = largest_step_tokens(layout.phase, spec)
    tokens += answering if layout.phase == "mixed" else 0  # decode tokens beside a chunk
    at_once, answers = _tokens_at_once(tokens, layout), min(tokens, answering)
    result = wide_bytes(layout.precision)
    streams = 2 * model.num_streams + 1  # residual streams before and after attention, and the experts' input
    stream = streams * tokens * model.hidden_size * result
    ahead = (answers - _tokens_at_once(answers, layout)) * model.vocab_size * LOGIT_BYTES
    attention = _attention_values(model, layout.phase, at_once, spec.max_request_tokens) * result
    dense_size = -(-model.dense_intermediate_size // layout.dense_tp)
    dense = _ffn_bytes(at_once, model.hidden_size, dense_size, layout.precision)
    pairs = _received_pairs(model, layout, at_once, dispatched)
    experts = _ffn_bytes(pairs, model.hidden_size, model.experts.intermediate_size, layout.precision)
    if layout.phase != "decode" and layout.dp_size > 1:
        experts = _normal_experts_bytes(model, layout, pairs, tokens, experts)
    head = 2 * answers * model.vocab_size * LOGIT_BYTES - ahead  # logits of the halves, and of all tokens together
    return stream + ahead + max(attention, dense, experts, head)


def _tokens_at_once(tokens: int, layout: PhaseLayout) -> int:
    """Return how many of a step's `tokens` a rank dispatches together: all, or with overlap the larger half."""
    return tokens if layout.overlap == "none" else -(-tokens // 2)


def _attention_values(model: Model, phase: Phase, tokens: int, max_request_tokens: int) -> int:
    """Return the number of values that the largest attention layer has in use in a step of `tokens` tokens.

    The step reads the KV of one request of `max_request_tokens`.
    """
    return max(each.num_activations(tokens, max_request_tokens, absorbs=phase == "decode") for each in model.attentions)


def _received_pairs(model: Model, layout: PhaseLayout, tokens: int, dispatched: int) -> int:
    """Return the most pairs of token and expert that one rank computes at once, if each rank dispatches `tokens`.

    Low-latency kernels dispatch `dispatched` tokens instead.
    """
    of_unit = tokens * model.num_experts_per_token * layout.dp_size
    normal = min(int(MAX_IMBALANCE * of_unit / layout.ep_size), of_unit)
    if layout.dp_size == 1:  # every GPU has all tokens, so none keeps room for what others send
        return normal
    # With low latency, each slot has room for all tokens of the unit.
    in_all_slots = layout.slots_per_gpu * layout.ep_size * dispatched
    return {"prefill": normal, "decode": in_all_slots, "mixed": max(normal, in_all_slots)}[layout.phase]


def _normal_experts_bytes(model: Model, layout: PhaseLayout, pairs: int, tokens: int, ffn: int) -> int:
    """Return the most bytes in use between a normal dispatch and its combine.

    The most are in use if no two of the `pairs` have the same token.

    The received rows are sorted by expert, the experts compute, and each token's results are summed before they are
    sent back. With overlap the other half's rows have arrived by then, and the shared experts have computed the whole
    step.
    """
    wide = wide_bytes(layout.precision) * model.hidden_size
    row, _ = message_bytes(model.hidden_size, layout.precision)
    choices = model.num_experts_per_token * CHOICE_BYTES
    filled_up = pairs + layout.slots_per_gpu * (TILE_ROWS - 1)
    largest = max(filled_up * row + pairs * row, filled_up * ffn // max(pairs, 1), (filled_up + pairs) * wide)
    waiting = 0 if layout.overlap == "none" else pairs * row
    # Shared experts' results of the whole step, and this half's sums.
    shared = (tokens + _tokens_at_once(tokens, layout)) * wide
    return largest + waiting + pairs * choices + shared


def _ffn_bytes(rows: int, hidden_size: int, intermediate_size: int, precision: Precision) -> int:
    """Return the most bytes that an FFN of `rows` rows has in use.

    These are its input, the product of gate and up, and the larger of two: gate and up, or the output, which is
    written after gate and up are freed.
    """
    compute, result = COMPUTE_BYTES[precision], wide_bytes(precision)
    read = hidden_size + intermediate_size
    scales = 4 * read // SCALE_CHANNELS if precision == "fp8" else 0
    written = max(2 * intermediate_size, hidden_size)
    return rows * (read * compute + scales + written * result)


def buffer_bytes(model: Model, layout: PhaseLayout, dispatched: int) -> int:
    """Return the bytes of buffers for dispatch, combine and collectives on one rank; 0 if a unit is one GPU.

    Low-latency buffers have room for `dispatched` tokens of each rank. A unit that is one attention group dispatches
    nothing, because each of its GPUs has all tokens.
    """
    if layout.ep_size == 1:
        return 0
    if layout.dp_size == 1:
        return NCCL_BYTES
    normal = _normal_bytes(model.hidden_size, layout.ep_size)
    low_latency = _round_to_granules(low_latency_bytes(model.hidden_size, layout.num_physical_experts, dispatched))
    dispatch = {"prefill": normal, "decode": low_latency, "mixed": normal + low_latency}[layout.phase]
    return NCCL_BYTES + WORKSPACE_BYTES + dispatch


def vllm_sampler_bytes(model: Model, max_requests: int) -> int:
    """Return the bytes of vLLM's sampler, which runs once with `max_requests` requests before KV is sized.

    Every GPU that shares attention has the logits of all requests over the whole vocabulary.
    """
    return max_requests * model.vocab_size * VLLM_SAMPLER_BYTES


def sparse_buffer_bytes(model: Model, max_request_tokens: int, kv_value_bytes: int) -> int:
    """Return the bytes that vLLM reserves at its start for prompts of sparse latent attention, in decode units too.

    FP8 KV is expanded to BF16 before prompts read it: 6.0 GB for GLM-5.2 with requests of 1,048,576 tokens.
    """
    sparse = {each for each in model.attentions if isinstance(each, LatentAttention) and each.is_sparse}
    expanded = max((2 * (each.kv_lora_rank + each.qk_rope_head_dim) for each in sparse), default=0)
    gathered = max((each.indexer.kv_bytes_per_token for each in sparse if each.indexer), default=0)
    expanded *= EXPANDED_REQUESTS if kv_value_bytes == 1 else 0
    return max_request_tokens * max(expanded, GATHERED_REQUESTS * gathered)


def _round_to_granules(num_bytes: int) -> int:
    """Return `num_bytes` rounded up as NVSHMEM allocates memory."""
    return -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES


def _normal_bytes(hidden_size: int, ep_size: int) -> int:
    """Return the buffer bytes of DeepEP's normal kernels, by its size hints for tuned configurations."""
    largest = max(CHUNK_TOKENS)
    nvlink_tokens, rdma_tokens = next(CHUNK_TOKENS[size] for size in CHUNK_TOKENS if min(ep_size, largest) <= size)
    # Values in BF16; index and weight of each expert; scales.
    token = 2 * hidden_size + SOURCE_META_BYTES + MAX_TOP_K * (8 + 4) + MAX_SCALES * 4
    nvlink_peers, rdma_peers = min(ep_size, NVLINK_PEERS), max(ep_size // NVLINK_PEERS, 1)
    nvlink = CHANNELS * nvlink_peers * (nvlink_tokens * token + 4 * (2 * rdma_peers + 3))
    nvlink = -(-nvlink // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
    if ep_size <= NVLINK_PEERS:
        return nvlink
    rdma = CHANNELS * rdma_peers * 2 * (rdma_tokens * (token + INT4_BYTES) + 4 * (2 * NVLINK_PEERS + 2))
    return nvlink + _round_to_granules(rdma)


def low_latency_bytes(hidden_size: int, num_experts: int, max_tokens: int) -> int:
    """Return the buffer bytes of DeepEP's low-latency kernels (`get_low_latency_rdma_size_hint`).

    The buffer takes 2.15 GB for 288 physical experts, 7,168 channels and 128 tokens of a rank.
    """
    scales = hidden_size // SCALE_CHANNELS
    dispatch_message = INT4_BYTES + max(2 * hidden_size, hidden_size + 4 * scales)
    combine_message = 4 * scales + 2 * hidden_size
    send = max_tokens * max(dispatch_message, num_experts * combine_message)
    receive = num_experts * max_tokens * max(dispatch_message, combine_message)
    return 2 * (send + receive + 4 * num_experts)  # one buffer for even steps, one for odd steps


def sglang_working_bytes(phase: Phase, section: PhaseSpec, gpu_bytes: int) -> int:
    """Return the bytes that SGLang keeps free on a GPU of `gpu_bytes` for activations and CUDA graphs.

    SGLang sizes its KV before it captures graphs and before DeepEP allocates buffers, so it must leave room for them.
    `--mem-fraction-static` is the share for weights and KV, of the memory that is free before weights are loaded. By
    default SGLang leaves free, in MiB:

        512 + 1.5 x tokens of a step (2,048 at least)                activations, and attention's buffers
        + 2 x requests of a captured step, + 1,536 for prompts       CUDA graphs
        + 1,024 for each 8 GPUs that share attention
        at least 10,240 on a GPU with more than 60 GiB

    Worked example, DeepSeek-V3 on H800: 10 GiB in decode, and 26 GiB in prefill with steps of 16,384 tokens. With
    DeepEP's buffers that leaves a share of 0.84 in decode, and KV of 124,000 tokens in prefill. The published
    deployment has 0.8, and a limit of 131,072 tokens.

    SGLang counts the tokens, requests and GPUs of the whole server. For a server of more than about ten GPUs that
    exceeds a GPU's memory. The planner counts those of one attention group, which is `assumed`.

    Sources: sglang 0.5.23 arg_groups/memory_hook.py (handle_gpu_memory_settings, reserve_for_graph_mb),
    mem_cache/kv_cache_configurator.py (_profile_available_bytes); published: github.com/sgl-project/sglang issues 7998
    and 6017.
    """
    tokens = decode_step_tokens(section) if phase == "decode" else section.max_batch_tokens
    activations = 512 * MIB + 3 * max(tokens, 2048) * MIB // 2
    graphs = (0 if phase == "prefill" else 2 * section.max_requests) + (0 if phase == "decode" else 1536)
    wanted = activations + graphs * MIB + section.attention_tp * 1024 * MIB // 8
    return max(wanted, LEAST_OF_LARGE) if gpu_bytes > LARGE_GPU_BYTES else wanted

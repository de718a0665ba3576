"""Compute the time of each operation of a layer on one GPU, as a function of its number of rows.

The constants of every formula were fitted to measured tables (`kernels.json`). Rows are those of one micro-batch. The
letters of the formulas:
    t   tokens of this GPU                      m   time to read the weights, at a share of the memory's bandwidth
    n   nodes of the unit                       c   time of the matmuls, at a share of their rate
    +   one after the other                     ^   soft maximum (`dimensions.py`)

Sources of the formulas: github.com/ai-dynamo/aiconfigurator 095f58a5 (tables of operators, as in aiconfigurator-core
0.12.0); github.com/deepseek-ai/DeepEP 0297fc80 docs/legacy.md; github.com/deepseek-ai/FlashMLA 066b5ba6 README.md.
"""

from dataclasses import dataclass
from math import log2
from typing import Literal

from planner.estimate.throughput.dimensions import Bytes, Flops, Seconds, compute_time, soft_maximum, transfer_time
from planner.estimate.throughput.machine import Machine
from planner.estimate.throughput.work import AttentionWork, FfnWork

INTO_SHARE = 2 / 3  # assumed: nine of decode attention's fourteen kernels run before core attention
FLOOR_SHARPNESS = 2  # exponent of the soft maximum of launch time and GPU time: 2 fits the tables better than 4 and 8


def attention_input_time(machine: Machine, work: AttentionWork, tokens: float) -> Seconds:
    """Return the time of decode's kernels before core attention.

    These are the projections, and INTO_SHARE of attention's fixed time.
    """
    kernels = machine.kernels
    fixed = machine.fixed(kernels.attention_fixed_us * INTO_SHARE)
    return Seconds(fixed + _projection_time(machine, work, work.into_weights, work.into_flops, tokens))


def attention_output_time(
    machine: Machine, work: AttentionWork, requests: float, kv_tokens: float, queries: int = 1
) -> Seconds:
    """Return the time of decode's core attention over `kv_tokens` per request, and of the projections after it.

    Core attention takes the longer of its matmuls and its KV reads: FlashMLA overlaps them. The `queries` of one
    request share one read of its KV, unless an indexer picks different tokens for each.
    """
    kernels, tokens = machine.kernels, requests * queries
    entries = kv_tokens / work.tokens_per_entry
    seen = min(kv_tokens, work.local) + (entries if work.window is None else min(entries, work.window))
    readers = tokens if work.index_flops else requests
    share = kernels.core_share * (kernels.core_fp8_speedup if "tokens" in work.fp8_core else 1.0)
    matmuls = compute_time(Flops(tokens * seen * work.core_flops / share), machine.bf16)
    reading = transfer_time(Bytes(readers * seen * work.core_bytes / kernels.core_memory_share), machine.memory)
    fixed = machine.fixed(kernels.attention_fixed_us * (1 - INTO_SHARE))
    core = max(matmuls, reading) + indexer_time(
        machine, work, tokens, entries, Bytes(requests * entries * work.index_bytes)
    )
    moved = Bytes((requests + tokens) * work.state_bytes)  # each request's state is read, and written for each query
    core += transfer_time(Bytes(moved / kernels.state_share), machine.memory)
    return Seconds(fixed + core + _projection_time(machine, work, work.out_weights, work.out_flops, tokens))


def indexer_time(machine: Machine, work: AttentionWork, tokens: float, context: float, read: Bytes) -> Seconds:
    """Return the time in which a sparse attention's indexer scores the context, the longer of matmuls and key reads.

    `read` counts the bytes of keys. The share of the matmul rate was measured with prompts, and includes the choice of
    the highest scores.
    """
    kernels = machine.kernels
    rate = machine.matmuls(work.index_in)
    matmuls = compute_time(Flops(tokens * context * work.index_flops / kernels.index_share), rate)
    return max(matmuls, transfer_time(Bytes(read / kernels.core_memory_share), machine.memory))


def prompt_attention_input_time(machine: Machine, work: AttentionWork, tokens: float) -> Seconds:
    """Return the time of prefill's projections to queries, keys and values, which is the time of their matmuls."""
    rate = machine.matmuls(work.kept_in)
    return compute_time(Flops(tokens * work.into_flops / machine.kernels.prompt_projection_share), rate)


def prompt_attention_output_time(
    machine: Machine, work: AttentionWork, tokens: float, context: float, requests: float
) -> Seconds:
    """Return the time of prefill's core attention and of the projection after it.

    A token reads `context` tokens on average: half of a prompt that is computed whole. With absorbed latents, each
    token's queries and results are larger than its hidden state, so that writing and reading them takes time as well.
    """
    kernels = machine.kernels
    entries = context / work.tokens_per_entry
    seen = entries if work.window is None else seen_in_window(entries, work.window)
    seen += seen_in_window(context, work.local) if work.local else 0
    core_share, query_share = _prompt_shares(machine, work)
    core = compute_time(Flops(tokens * seen * work.prompt_core_flops / core_share), machine.bf16)
    queries = transfer_time(Bytes(tokens * work.query_bytes / query_share), machine.memory)
    rate = machine.matmuls(work.kept_in)
    out = compute_time(Flops(tokens * work.out_flops / kernels.prompt_projection_share), rate)
    scores = indexer_time(machine, work, tokens, entries, Bytes(entries * requests * work.index_bytes))
    scan = transfer_time(Bytes(tokens * work.scan_bytes / kernels.scan_share), machine.memory)
    return Seconds(core + queries + scores + scan + out + machine.fixed(kernels.prompt_request_us * requests))


def streams_time(machine: Machine, num_bytes: Bytes) -> Seconds:
    """Return the time in which a layer's residual streams are mixed, moving `num_bytes`; 0 for a single stream."""
    if not num_bytes:
        return Seconds(0.0)
    kernels = machine.kernels
    moving = transfer_time(Bytes(num_bytes / kernels.stream_share), machine.memory)
    return Seconds(machine.fixed(kernels.stream_fixed_us) + moving)


def seen_in_window(context: float, window: int) -> float:
    """Return how many tokens a prompt's token reads on average, at most `window` of those before it.

    Tokens have between 0 and 2 x `context` tokens before them, equally often.
    """
    return context if 2 * context <= window else window - window**2 / (4 * context)


def apply_launch_floor(floor: Seconds, time: Seconds) -> Seconds:
    """Return the soft maximum of the `time` that work takes a GPU and of the `floor` that its launch takes the host."""
    longer, shorter = max(floor, time), min(floor, time)
    return Seconds(longer * (1 + (shorter / longer) ** FLOOR_SHARPNESS) ** (1 / FLOOR_SHARPNESS)) if longer else longer


def routed_experts_time(machine: Machine, work: FfnWork, slots: float, pairs: float) -> Seconds:
    """Return the time of decode's routed experts on a GPU that received `pairs` rows.

    The time is a fixed time + the soft maximum of weight reads and matmuls. `slots` counts the GPU's experts that
    received rows; the weights of the other experts are not read.
    """
    kernels = machine.kernels
    reading = transfer_time(Bytes(slots * work.weights / kernels.expert_weight_share), machine.memory)
    matmuls = compute_time(Flops(pairs * work.flops / kernels.expert_matmul_share), machine.matmuls(work.kept_in))
    return Seconds(machine.fixed(kernels.expert_fixed_us) + soft_maximum(reading, matmuls))


def prompt_experts_time(machine: Machine, work: FfnWork, slots: float, pairs: float) -> Seconds:
    """Return the time of prefill's routed experts on a GPU that received `pairs` rows.

    Copies of rows are not included (`expert_copy_bytes`). The time is a fixed time + the longer of weight reads and
    matmuls. `slots` counts the GPU's experts that received rows.
    """
    kernels = machine.kernels
    reading = transfer_time(Bytes(slots * work.weights / kernels.copy_share), machine.memory)
    matmuls = compute_time(Flops(pairs * work.flops / kernels.prompt_matmul_share), machine.matmuls(work.kept_in))
    return Seconds(machine.fixed(kernels.prompt_expert_fixed_us) + max(reading, matmuls))


def expert_copy_bytes(
    hidden_bytes: int, dispatch_bytes: int, intermediate_size: int, tokens: float, pairs: float
) -> Bytes:
    """Return the bytes that prefill's kernels read and write around a GPU's experts, beside the matmuls themselves.

    The GPU received `tokens` tokens, which make `pairs` rows. Each received row is read and written to its expert's
    place. Results of the gate and up projections are read, and their product is written. Each result is written, read
    again, and added to its token's sum.
    """
    row = 2 * dispatch_bytes + 5 * intermediate_size + hidden_bytes  # gate and up in BF16, their product in FP8
    return Bytes(pairs * row + tokens * (dispatch_bytes + hidden_bytes))


def copy_time(machine: Machine, num_bytes: Bytes) -> Seconds:
    """Return the time of kernels that only move `num_bytes` in memory."""
    return transfer_time(Bytes(num_bytes / machine.kernels.copy_share), machine.memory)


def dense_ffn_time(machine: Machine, work: FfnWork, tokens: float) -> Seconds:
    """Return the time of a shared expert or of a dense layer's FFN for `tokens` rows.

    The time is a fixed time + the soft maximum of weight reads and matmuls.
    """
    kernels = machine.kernels
    reading = transfer_time(Bytes(work.weights / kernels.ffn_weight_share), machine.memory)
    matmuls = compute_time(Flops(tokens * work.flops / kernels.ffn_matmul_share), machine.matmuls(work.kept_in))
    return Seconds(machine.fixed(kernels.ffn_fixed_us) + soft_maximum(reading, matmuls))


def head_time(machine: Machine, weights: Bytes, flops: Flops, tokens: float) -> Seconds:
    """Return the time from the last layer to the logits of `tokens` answering tokens, whose matmuls are in BF16.

    The time is the soft maximum of weight reads and matmuls. `flops` are the operations for one token.
    """
    kernels = machine.kernels
    reading = transfer_time(Bytes(weights / kernels.ffn_weight_share), machine.memory)
    return soft_maximum(reading, compute_time(Flops(tokens * flops / kernels.ffn_matmul_share), machine.bf16))


@dataclass(frozen=True)
class LowLatency:
    """The times of the three parts of a low-latency exchange: sending, flight over the links, receiving."""

    issue: Seconds  # the GPU's processors send rows
    flight: Seconds  # no processor is busy
    receive: Seconds  # the GPU's processors receive rows


def low_latency_dispatch(machine: Machine, sent: Bytes, received: Bytes, nodes: int) -> LowLatency:
    """Return the times of a low-latency dispatch.

    `sent` and `received` count the bytes that a GPU exchanges with other nodes or, in a unit of one node, with other
    GPUs.
    """
    kernels = machine.kernels
    whole = low_latency_seconds(machine, "dispatch", received, nodes)
    fixed = machine.fixed(kernels.dispatch_nvlink_fixed_us)
    return _split_exchange(machine, fixed, kernels.dispatch_rows_share, sent, received, whole)


def low_latency_combine(machine: Machine, sent: Bytes, received: Bytes, nodes: int) -> LowLatency:
    """Return the times of a low-latency combine.

    A combine reverses the dispatch, so the GPU that received most rows now sends most.
    """
    kernels = machine.kernels
    whole = low_latency_seconds(machine, "combine", sent, nodes)
    fixed = machine.fixed(kernels.combine_nvlink_fixed_us)
    return _split_exchange(machine, fixed, kernels.combine_rows_share, sent, received, whole)


def low_latency_seconds(
    machine: Machine, kind: Literal["dispatch", "combine"], num_bytes: Bytes, nodes: int
) -> Seconds:
    """Return the time of a whole low-latency exchange in which the fullest GPU transfers `num_bytes`.

    In one node it takes a fixed time + the transfer over NVLink. Between nodes it takes a fixed time + a time for each
    doubling of the number of nodes + the transfer over the NIC.
    """
    kernels, of_dispatch = machine.kernels, kind == "dispatch"
    if nodes == 1:
        share = kernels.dispatch_nvlink_share if of_dispatch else kernels.combine_nvlink_share
        fixed = kernels.dispatch_nvlink_fixed_us if of_dispatch else kernels.combine_nvlink_fixed_us
        return Seconds(machine.fixed(fixed) + transfer_time(Bytes(num_bytes / share), machine.nvlink))
    share = kernels.dispatch_nic_share if of_dispatch else kernels.combine_nic_share
    fixed = kernels.dispatch_fixed_us if of_dispatch else kernels.combine_fixed_us
    doubling = kernels.dispatch_doubling_us if of_dispatch else kernels.combine_doubling_us
    return Seconds(machine.fixed(fixed + doubling * log2(nodes)) + transfer_time(Bytes(num_bytes / share), machine.nic))


def _split_exchange(
    machine: Machine, fixed: Seconds, share: float, sent: Bytes, received: Bytes, whole: Seconds
) -> LowLatency:
    """Split an exchange of `whole` seconds into sending, flight and receiving.

    Half of an exchange's kernels send rows, half receive rows. Their time, `fixed` + the rows at `share` of the
    memory's rate, is assumed to be the same as within one node, where the kernels wait for nothing else.
    """
    issue = Seconds((fixed + transfer_time(Bytes(sent / share), machine.memory)) / 2)
    receive = Seconds((fixed + transfer_time(Bytes(received / share), machine.memory)) / 2)
    return LowLatency(issue, Seconds(max(whole - issue - receive, 0.0)), receive)


def normal_exchange_time(machine: Machine, nvlink_bytes: Bytes, nic_bytes: Bytes) -> Seconds:
    """Return the time of a normal dispatch or combine. NVLink and NIC transfers overlap, so the longer one counts."""
    kernels = machine.kernels
    inside = (
        transfer_time(Bytes(nvlink_bytes / kernels.normal_nvlink_share), machine.nvlink) if nvlink_bytes else Seconds(0)
    )
    between = transfer_time(Bytes(nic_bytes / kernels.normal_nic_share), machine.nic) if nic_bytes else Seconds(0)
    return max(inside, between)


def _prompt_shares(machine: Machine, work: AttentionWork) -> tuple[float, float]:
    """Return the shares that kernels for prompts reach: core attention of the BF16 rate, queries of the bandwidth."""
    kernels = machine.kernels
    if work.prompt_kind == "sparse":
        return kernels.sparse_core_share, kernels.absorbed_share
    if work.prompt_kind == "compressed":
        return kernels.compressed_core_share, kernels.compressed_share
    return kernels.prompt_core_share * (kernels.prompt_core_fp8_speedup if "prompts" in work.fp8_core else 1.0), 1.0


def _projection_time(machine: Machine, work: AttentionWork, weights: Bytes, flops: Flops, tokens: float) -> Seconds:
    kernels = machine.kernels
    reading = transfer_time(Bytes(weights / kernels.attention_weight_share), machine.memory)
    matmuls = compute_time(Flops(tokens * flops / kernels.projection_share), machine.matmuls(work.kept_in))
    return soft_maximum(reading, matmuls)

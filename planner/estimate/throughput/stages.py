"""Compute the seconds of each span of a layer (attention, dispatch, experts, ...), for one micro-batch of a phase.

The spans are those of the runtime's trace (`overlap.py`). `operations.py` has the times of kernels. `Overheads` has the
times that no table of operators contains:
    between      launches, norms, the choice of slots: a fixed time per layer and micro-batch, spread over its stages
    beside       prefill's kernels run slower while an exchange uses processors and memory
    skew         decode's ranks wait for the slowest one at each dispatch and combine

The fullest GPU sets the pace of experts and of dispatch and combine. `Imbalance` has its load over the mean.

Sources: open-infra-index, day 6 (stages); github.com/deepseek-ai/DeepEP 0297fc80 docs/legacy.md (normal exchanges take
24 of an H800's 132 processors, low-latency ones none while bytes travel).
"""

import math
from dataclasses import dataclass

from planner.estimate.throughput import operations
from planner.estimate.throughput.dimensions import Bytes, Seconds
from planner.estimate.throughput.machine import MICRO, Machine
from planner.estimate.throughput.overlap import SpanName
from planner.estimate.throughput.work import LayerWork, ModelWork
from planner.facts.terms import Overlap

EXCHANGE_PROCESSORS = 24 / 132  # share of a GPU's processors that an overlapped normal exchange takes
NUM_PAUSES = 5  # parts into which the overhead between kernels is split
NORM_ROWS = 4  # rows that a norm or a sum moves for each token: stream and result are read, both are written


@dataclass(frozen=True)
class UnitShape:
    """The sizes of a unit that determine a layer's time."""

    num_gpus: int
    num_nodes: int  # NVLink domains, connected by NICs
    attention_tp: int
    slots_per_gpu: int
    num_experts: int
    remote_share: float | None = None  # of pairs that leave their node, or in one node their GPU; None: uniform

    @property
    def sent_share(self) -> float:
        """Return the share of token-expert pairs sent to another node or, in a unit of one node, to another GPU.

        The share is `remote_share` if that is known; else replicas are assumed to be chosen equally.
        """
        places = self.num_gpus if self.num_nodes == 1 else self.num_nodes
        return (places - 1) / places if self.remote_share is None else self.remote_share

    @property
    def shares_all(self) -> bool:
        """Return whether all GPUs of the unit share attention. Every GPU then has all tokens, and dispatches none."""
        return self.attention_tp == self.num_gpus


@dataclass(frozen=True)
class Imbalance:
    """The load of the fullest GPU over the mean GPU's, and of the fullest node over the mean node's."""

    gpus: float = 1.0
    nodes: float = 1.0


@dataclass(frozen=True)
class Overheads:
    """The times that an engine adds to the times of its kernels."""

    between_us: float  # time between kernels, per layer and micro-batch of decode
    prompt_between_us: float  # time between kernels, per layer and micro-batch of prefill
    beside: float  # factor on the time of prefill's kernels while exchanges run
    host_ms: float  # time of the host, per step
    skew_us: float = 0.0  # wait for the slowest rank at dispatch and combine together, of a whole batch of decode


@dataclass(frozen=True)
class Exchange:
    """The mean number of copies of one token that a normal dispatch sends."""

    gpus: float  # copies to other GPUs
    nodes: float  # copies to other nodes


@dataclass(frozen=True)
class Setup:
    """Everything that determines a step's time except the load: GPU, model part, unit, overheads and exchange."""

    machine: Machine
    model: ModelWork
    unit: UnitShape
    imbalance: Imbalance
    overheads: Overheads
    overlap: Overlap
    exchange: Exchange  # of normal dispatch


Spans = dict[SpanName, Seconds]


def decode_spans(setup: Setup, layer: LayerWork, requests: float, kv_tokens: float, queries: int = 1) -> Spans:
    """Return the seconds of a MoE layer's spans for a decode micro-batch of `requests` with `kv_tokens` of KV each.

    `requests` counts the requests of one attention group. A request that verifies drafts has several `queries`, and
    each query is one row in every kernel.
    """
    assert layer.expert is not None
    machine, model, unit = setup.machine, setup.model, setup.unit
    spans = _decode_attention(setup, layer, requests, kv_tokens, queries)
    rows = requests * queries
    tokens = rows / unit.attention_tp  # dispatched by this GPU
    computed = rows if unit.shares_all else tokens  # rows of dense parts on this GPU
    pairs = tokens * layer.experts_per_token
    fullest = pairs * setup.imbalance.gpus
    busy = _busy_slots(unit, pairs * unit.num_gpus)
    if layer.shared:
        spans["shared expert"] = operations.dense_ffn_time(machine, layer.shared, computed)
    spans["experts"] = operations.routed_experts_time(machine, layer.expert, busy, fullest)
    if unit.shares_all:
        spans["combine issue"] = _all_reduce(setup, rows)
        return spans
    mean, most = pairs * unit.sent_share, fullest * unit.sent_share
    dispatch = operations.low_latency_dispatch(
        machine, Bytes(mean * model.dispatch_bytes), Bytes(most * model.dispatch_bytes), unit.num_nodes
    )
    combine = operations.low_latency_combine(
        machine, Bytes(most * model.combine_bytes), Bytes(mean * model.combine_bytes), unit.num_nodes
    )
    rows_share = 1.0 if setup.overlap == "none" else 0.5  # what is uneven grows as the square root of a batch
    skew = setup.overheads.skew_us * MICRO / 2 * math.sqrt(rows_share)
    for name, exchange in (("dispatch", dispatch), ("combine", combine)):
        spans |= {f"{name} issue": exchange.issue, f"{name} wait": exchange.receive}
        spans[name] = Seconds(exchange.flight + skew)
    return spans


def prompt_spans(setup: Setup, layer: LayerWork, tokens: float, context: float, prompt_tokens: float) -> Spans:
    """Return the seconds of a MoE layer's spans for a prefill micro-batch of `tokens` prompt tokens.

    `tokens` counts the tokens of one attention group. A token reads `context` tokens of its prompt on average, and
    `prompt_tokens` of each prompt are computed.
    """
    assert layer.expert is not None
    machine, model, unit, exchange, imbalance = setup.machine, setup.model, setup.unit, setup.exchange, setup.imbalance
    slower = 1.0 if setup.overlap == "none" else setup.overheads.beside
    compute = slower / (1 - EXCHANGE_PROCESSORS) if setup.overlap != "none" else 1.0
    spans = _prompt_attention(setup, layer, tokens, context, prompt_tokens, compute, slower)
    own = tokens / unit.attention_tp
    pairs = own * layer.experts_per_token * imbalance.gpus
    arrived = own * exchange.gpus * unit.num_gpus / max(unit.num_gpus - 1, 1) * imbalance.gpus
    if layer.shared:
        seen = tokens if unit.shares_all else own
        spans["shared expert"] = Seconds(operations.dense_ffn_time(machine, layer.shared, seen) * compute)
    copied = operations.expert_copy_bytes(
        model.hidden_bytes, model.dispatch_bytes, model.intermediate_size, arrived, pairs
    )
    spans["experts"] = Seconds(
        operations.prompt_experts_time(machine, layer.expert, unit.slots_per_gpu, pairs) * compute
        + operations.copy_time(machine, copied) * slower
    )
    if unit.shares_all:
        spans["combine issue"] = _all_reduce(setup, tokens)
        return spans
    for name, num_bytes in (("dispatch", model.dispatch_bytes), ("combine", model.combine_bytes)):
        spans[name] = operations.normal_exchange_time(
            machine,
            Bytes(own * exchange.gpus * num_bytes * imbalance.gpus),
            Bytes(own * exchange.nodes * num_bytes * imbalance.nodes),
        )
    return spans


def dense_decode_spans(setup: Setup, layer: LayerWork, requests: float, kv_tokens: float, queries: int = 1) -> Spans:
    """Return the seconds of a dense layer's spans in decode. Only GPUs that share attention exchange anything."""
    spans = _decode_attention(setup, layer, requests, kv_tokens, queries)
    return spans | {"mlp": _mlp(setup, layer, requests * queries)}


def dense_prompt_spans(setup: Setup, layer: LayerWork, tokens: float, context: float, prompt_tokens: float) -> Spans:
    """Return the seconds of a dense layer's spans in prefill. A dense layer overlaps nothing."""
    spans = _prompt_attention(setup, layer, tokens, context, prompt_tokens, 1.0, 1.0)
    return spans | {"mlp": _mlp(setup, layer, tokens)}


def _mlp(setup: Setup, layer: LayerWork, rows: float) -> Seconds:
    assert layer.dense is not None
    seen = rows if setup.unit.shares_all else rows / setup.unit.attention_tp
    return operations.dense_ffn_time(setup.machine, layer.dense, seen)


def _decode_attention(setup: Setup, layer: LayerWork, requests: float, kv_tokens: float, queries: int) -> Spans:
    machine, between = setup.machine, setup.overheads.between_us * MICRO / NUM_PAUSES
    shared = _all_reduce(setup, requests * queries)
    streams = _streams(setup, requests * queries)
    return {
        "attention 1": Seconds(
            operations.attention_input_time(machine, layer.attention, requests * queries) + 2 * between + streams
        ),
        "attention 2": Seconds(
            operations.attention_output_time(machine, layer.attention, requests, kv_tokens, queries) + shared + between
        ),
        "gate": Seconds(between),
        "sum": Seconds(between),
    }


def _prompt_attention(
    setup: Setup, layer: LayerWork, tokens: float, context: float, prompt_tokens: float, compute: float, slower: float
) -> Spans:
    """Return the seconds of prefill's attention spans. The host's launch time is a floor for both parts together.

    `compute` multiplies the times of kernels that lose processors to exchanges, and `slower` the times of all other
    kernels.
    """
    machine = setup.machine
    into = operations.prompt_attention_input_time(machine, layer.attention, tokens) * compute
    out = (
        operations.prompt_attention_output_time(machine, layer.attention, tokens, context, tokens / prompt_tokens)
        * compute
        + _all_reduce(setup, tokens) * slower
    )
    floor = machine.fixed(machine.kernels.prompt_floor_us)
    both = operations.apply_launch_floor(floor, Seconds(into + out))
    share = both / (into + out)
    between = setup.overheads.prompt_between_us * MICRO / NUM_PAUSES
    normed = Bytes(tokens / setup.unit.attention_tp * NORM_ROWS * setup.model.hidden_bytes)
    norms = operations.copy_time(machine, normed) * slower
    return {
        "attention 1": Seconds(into * share + norms + 2 * between + _streams(setup, tokens) * slower),
        "attention 2": Seconds(out * share + between),
        "gate": Seconds(norms + between),
        "sum": Seconds(norms + between),
    }


def _streams(setup: Setup, tokens: float) -> Seconds:
    """Return the time in which a layer's residual streams of `tokens` tokens are mixed, on every GPU of a group."""
    return operations.streams_time(setup.machine, Bytes(tokens * setup.model.stream_bytes))


def _all_reduce(setup: Setup, tokens: float) -> Seconds:
    """Return the time of the all-reduce that sums the results of `tokens` tokens over the GPUs that share attention."""
    n = setup.unit.attention_tp
    if n == 1:
        return Seconds(0.0)
    half = Bytes((n - 1) / n * tokens * setup.model.hidden_bytes)
    return Seconds(2 * operations.low_latency_seconds(setup.machine, "dispatch", half, setup.unit.num_nodes))


def _busy_slots(unit: UnitShape, pairs: float) -> float:
    """Return the mean number of a GPU's slots that receive any row, if the unit's `pairs` choose slots uniformly."""
    idle = math.pow(1 - 1 / (unit.slots_per_gpu * unit.num_gpus), pairs)
    return unit.slots_per_gpu * (1 - idle)

"""The seconds of each span of a layer, for one micro-batch of a phase.

The spans are those of the runtime's trace (`overlap.py`). Operations (`operations.py`) say what kernels take;
`Overheads` say what lies between them and beside them, which no table of operators has:
    between      launches, norms, the choice of slots: a fixed time a layer and micro-batch, spread over its stages
    beside       kernels run slower while an exchange uses processors and memory next to them (prefill)

The fullest GPU sets the pace of experts and of both exchanges: `Imbalance` says how much fuller it is than the mean.

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

__all__ = [
    *("Exchange", "Imbalance", "Overheads", "Setup", "Spans", "UnitShape"),
    *("decode_spans", "dense_decode_spans", "dense_prompt_spans", "prompt_spans"),
]

EXCHANGE_PROCESSORS = 24 / 132  # that a normal exchange takes while it overlaps
NUM_PAUSES = 5
NORM_ROWS = 4  # of the stream that a norm, or a sum, reads and writes: stream and result in, both out


@dataclass(frozen=True)
class UnitShape:
    """What of a layout decides how long a layer takes."""

    num_gpus: int
    num_nodes: int  # that NICs are between: NVLink domains
    attention_tp: int
    slots_per_gpu: int
    num_experts: int
    away: float | None = None  # share of pairs that leave their node, or in one node their GPU; None: chosen alike

    @property
    def reached(self) -> float:
        """Return the share of pairs that are sent over the links which an exchange waits for."""
        places = self.num_gpus if self.num_nodes == 1 else self.num_nodes
        return (places - 1) / places if self.away is None else self.away

    @property
    def shares_all(self) -> bool:
        """Whether the unit is one attention group: every GPU has all tokens, and none is dispatched."""
        return self.attention_tp == self.num_gpus


@dataclass(frozen=True)
class Imbalance:
    """The fullest over the mean: of GPUs, and of nodes."""

    gpus: float = 1.0
    nodes: float = 1.0


@dataclass(frozen=True)
class Overheads:
    """What an engine adds to its kernels."""

    between_us: float  # a layer and micro-batch of decode
    prompt_between_us: float
    beside: float  # factor of prefill's kernels while exchanges run beside them
    host_ms: float  # a step


@dataclass(frozen=True)
class Exchange:
    """Copies of one token on links, on average."""

    gpus: float  # that have one of its experts, those of its own GPU left out
    nodes: float  # likewise


@dataclass(frozen=True)
class Setup:
    """What computes a step: a GPU, the model that it has a part of, its unit, and what the engine adds."""

    machine: Machine
    model: ModelWork
    unit: UnitShape
    imbalance: Imbalance
    overheads: Overheads
    overlap: Overlap
    exchange: Exchange  # of normal dispatch


Spans = dict[SpanName, Seconds]


def decode_spans(setup: Setup, layer: LayerWork, requests: float, kv_tokens: float, queries: int = 1) -> Spans:
    """Return the spans of a micro-batch of `requests` of an attention group, each with `kv_tokens` of KV.

    A request has several `queries` where it verifies drafts: each is a row of its own everywhere.
    """
    assert layer.expert is not None
    machine, model, unit = setup.machine, setup.model, setup.unit
    spans = _decode_attention(setup, layer, requests, kv_tokens, queries)
    rows = requests * queries
    tokens = rows / unit.attention_tp  # that this GPU dispatches
    computed = rows if unit.shares_all else tokens  # that its share of dense parts sees
    pairs = tokens * layer.experts_per_token
    fullest = pairs * setup.imbalance.gpus
    busy = _busy_slots(unit, pairs * unit.num_gpus)
    if layer.shared:
        spans["shared expert"] = operations.dense_ffn(machine, layer.shared, computed)
    spans["experts"] = operations.routed_experts(machine, layer.expert, busy, fullest)
    if unit.shares_all:
        spans["combine issue"] = _all_reduce(setup, rows)
        return spans
    mean, most = pairs * unit.reached, fullest * unit.reached
    dispatch = operations.low_latency_dispatch(
        machine, Bytes(mean * model.dispatch_bytes), Bytes(most * model.dispatch_bytes), unit.num_nodes
    )
    combine = operations.low_latency_combine(
        machine, Bytes(most * model.combine_bytes), Bytes(mean * model.combine_bytes), unit.num_nodes
    )
    for name, exchange in (("dispatch", dispatch), ("combine", combine)):
        spans |= {f"{name} issue": exchange.issue, name: exchange.flight, f"{name} wait": exchange.receive}
    return spans


def prompt_spans(setup: Setup, layer: LayerWork, tokens: float, context: float, prompt_tokens: float) -> Spans:
    """Return the spans of a micro-batch of `tokens` of prompts of an attention group.

    A token reads `context` tokens of its prompt on average.
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
        spans["shared expert"] = Seconds(operations.dense_ffn(machine, layer.shared, seen) * compute)
    copied = operations.expert_copies(model.hidden_bytes, model.dispatch_bytes, model.intermediate_size, arrived, pairs)
    spans["experts"] = Seconds(
        operations.prompt_experts(machine, layer.expert, unit.slots_per_gpu, pairs) * compute
        + operations.copies(machine, copied) * slower
    )
    if unit.shares_all:
        spans["combine issue"] = _all_reduce(setup, tokens)
        return spans
    for name, num_bytes in (("dispatch", model.dispatch_bytes), ("combine", model.combine_bytes)):
        spans[name] = operations.transfer(
            machine,
            Bytes(own * exchange.gpus * num_bytes * imbalance.gpus),
            Bytes(own * exchange.nodes * num_bytes * imbalance.nodes),
        )
    return spans


def dense_decode_spans(setup: Setup, layer: LayerWork, requests: float, kv_tokens: float, queries: int = 1) -> Spans:
    """Return the same of a dense layer, which exchanges nothing but where GPUs share attention."""
    spans = _decode_attention(setup, layer, requests, kv_tokens, queries)
    return spans | {"mlp": _mlp(setup, layer, requests * queries)}


def dense_prompt_spans(setup: Setup, layer: LayerWork, tokens: float, context: float, prompt_tokens: float) -> Spans:
    """Return the same of a dense layer, which overlaps nothing."""
    spans = _prompt_attention(setup, layer, tokens, context, prompt_tokens, 1.0, 1.0)
    return spans | {"mlp": _mlp(setup, layer, tokens)}


def _mlp(setup: Setup, layer: LayerWork, rows: float) -> Seconds:
    assert layer.dense is not None
    seen = rows if setup.unit.shares_all else rows / setup.unit.attention_tp
    return operations.dense_ffn(setup.machine, layer.dense, seen)


def _decode_attention(setup: Setup, layer: LayerWork, requests: float, kv_tokens: float, queries: int) -> Spans:
    machine, between = setup.machine, setup.overheads.between_us * MICRO / NUM_PAUSES
    shared = _all_reduce(setup, requests * queries)
    return {
        "attention 1": Seconds(operations.attention_into(machine, layer.attention, requests * queries) + 2 * between),
        "attention 2": Seconds(
            operations.attention_out(machine, layer.attention, requests, kv_tokens, queries) + shared + between
        ),
        "gate": Seconds(between),
        "sum": Seconds(between),
    }


def _prompt_attention(
    setup: Setup, layer: LayerWork, tokens: float, context: float, prompt_tokens: float, compute: float, slower: float
) -> Spans:
    """The host's launches are a floor: what they add is spread over both parts."""
    machine = setup.machine
    into = operations.prompt_attention_into(machine, layer.attention, tokens) * compute
    out = (
        operations.prompt_attention_out(machine, layer.attention, tokens, context, tokens / prompt_tokens) * compute
        + _all_reduce(setup, tokens) * slower
    )
    floor = machine.fixed(machine.kernels.prompt_floor_us)
    both = operations.at_least(floor, Seconds(into + out))
    share = both / (into + out)
    between = setup.overheads.prompt_between_us * MICRO / NUM_PAUSES
    normed = Bytes(tokens / setup.unit.attention_tp * NORM_ROWS * setup.model.hidden_bytes)
    norms = operations.copies(machine, normed) * slower
    return {
        "attention 1": Seconds(into * share + norms + 2 * between),
        "attention 2": Seconds(out * share + between),
        "gate": Seconds(norms + between),
        "sum": Seconds(norms + between),
    }


def _all_reduce(setup: Setup, tokens: float) -> Seconds:
    """Return the time to sum the results of `tokens` over the GPUs that share attention."""
    n = setup.unit.attention_tp
    if n == 1:
        return Seconds(0.0)
    half = Bytes((n - 1) / n * tokens * setup.model.hidden_bytes)
    return Seconds(2 * operations.low_latency_seconds(setup.machine, "dispatch", half, setup.unit.num_nodes))


def _busy_slots(unit: UnitShape, pairs: float) -> float:
    """Return the slots of a GPU that some row comes to, where `pairs` of the unit choose among experts alike."""
    idle = math.pow(1 - 1 / (unit.slots_per_gpu * unit.num_gpus), pairs)
    return unit.slots_per_gpu * (1 - idle)

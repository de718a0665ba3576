"""The time of one step of a phase: layers, head, host; and how it divides.

step = MoE layers x one layer's timeline + dense layers + head + host
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.estimate.throughput import operations
from planner.estimate.throughput.dimensions import Seconds
from planner.estimate.throughput.machine import Machine
from planner.estimate.throughput.overlap import LayerTimeline, one_layer
from planner.estimate.throughput.stages import (
    Exchange,
    Imbalance,
    Overheads,
    UnitShape,
    decode_spans,
    mlp_spans,
    prompt_spans,
)
from planner.estimate.throughput.work import ModelWork
from planner.facts.terms import Overlap

__all__ = ["StepTime", "decode_step", "prompt_step"]

MILLI = 1e-3


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, part by part; `layers` are the timelines of each kind of MoE layer."""

    moe_layers: Seconds
    dense_layers: Seconds
    head: Seconds
    host: Seconds
    exposed: Seconds  # of the MoE layers, waiting for exchanges
    timelines: tuple[tuple[LayerTimeline, int], ...]
    spans: tuple[Mapping[str, Seconds], ...]  # of each micro-batch, of the most frequent kind of MoE layer

    @property
    def seconds(self) -> Seconds:
        """Return the whole step."""
        return Seconds(self.moe_layers + self.dense_layers + self.head + self.host)


def decode_step(
    machine: Machine,
    model: ModelWork,
    unit: UnitShape,
    imbalance: Imbalance,
    overheads: Overheads,
    overlap: Overlap,
    requests: float,
    kv_tokens: float,
    *,
    with_spans: bool = False,
) -> StepTime:
    """Return the time of a step in which an attention group gives each of its `requests` one token."""
    parts = _parts(requests, overlap)
    timelines: list[tuple[LayerTimeline, int]] = []
    shown: tuple[Mapping[str, Seconds], ...] = ()
    dense = 0.0
    for layer, count in model.layers.items():
        if layer.expert is None:
            for part in parts:
                spans = mlp_spans(machine, model, layer, unit, overheads, "decode", part, kv_tokens, 1)
                dense += count * sum(spans.values())
            continue
        each = [
            decode_spans(machine, model, layer, unit, imbalance, overheads, part, kv_tokens) for part in parts[:1]
        ] * len(parts)
        timelines.append((one_layer(each, overlap, with_spans=with_spans), count))
        shown = tuple(each) if count == max(model.layers.values()) else shown
    answering = requests / unit.attention_tp if not unit.shares_all else requests
    head = operations.head(machine, model.head_weights, model.head_flops, answering)
    return _step(timelines, dense, head, overheads, shown)


def prompt_step(
    machine: Machine,
    model: ModelWork,
    unit: UnitShape,
    imbalance: Imbalance,
    overheads: Overheads,
    overlap: Overlap,
    exchange: Exchange,
    tokens: float,
    context: float,
    prompt_tokens: float,
    *,
    with_spans: bool = False,
) -> StepTime:
    """Return the time of a step in which an attention group computes `tokens` of prompts."""
    parts = _parts(tokens, overlap)
    timelines: list[tuple[LayerTimeline, int]] = []
    shown: tuple[Mapping[str, Seconds], ...] = ()
    dense = 0.0
    for layer, count in model.layers.items():
        if layer.expert is None:
            for part in parts:
                spans = mlp_spans(machine, model, layer, unit, overheads, "prefill", part, context, prompt_tokens)
                dense += count * sum(spans.values())
            continue
        spans = prompt_spans(
            *(machine, model, layer, unit, imbalance, overheads, exchange),
            *(parts[0], context, prompt_tokens, overlap),
        )
        each = [spans] * len(parts)
        timelines.append((one_layer(each, overlap, with_spans=with_spans), count))
        shown = tuple(each) if count == max(model.layers.values()) else shown
    head = operations.head(machine, model.head_weights, model.head_flops, tokens / prompt_tokens)
    return _step(timelines, dense, head, overheads, shown)


def _parts(rows: float, overlap: Overlap) -> list[float]:
    """Return the rows of each micro-batch: two halves, unless nothing overlaps."""
    return [rows] if overlap == "none" else [rows / 2, rows / 2]


def _step(
    timelines: list[tuple[LayerTimeline, int]],
    dense: float,
    head: Seconds,
    overheads: Overheads,
    shown: tuple[Mapping[str, Seconds], ...],
) -> StepTime:
    return StepTime(
        moe_layers=Seconds(sum(count * each.seconds for each, count in timelines)),
        dense_layers=Seconds(dense),
        head=head,
        host=Seconds(overheads.host_ms * MILLI),
        exposed=Seconds(sum(count * each.exposed for each, count in timelines)),
        timelines=tuple(timelines),
        spans=shown,
    )

"""Compute the time of one step of a phase and of its parts: layers, head, drafts and host.

step = MoE layers x one layer's timeline + dense layers + head + drafts + host

An MTP module drafts tokens in decode, and in prefill computes its own KV of the prompts:
    decode     one pass over all rows that the step verified, and for each further draft a pass over one token per
               request; each pass has a projection of state and embedding, a layer like the main model's, and the head
    prefill    one pass over the step's prompts, with the head for prompts that end

A pass is one layer long, so it overlaps nothing. Wrong drafts cost as much as right ones, because every request has the
same number of rows. One module makes all drafts: after the first draft it starts from its own state, as in SGLang and
vLLM.

Source: github.com/deepseek-ai/DeepSeek-V3 0b39205a README_WEIGHTS.md (what a module consists of); sglang 0.5.23
speculative/eagle_worker_v2.py (passes).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.estimate.throughput import operations
from planner.estimate.throughput.dimensions import Seconds
from planner.estimate.throughput.overlap import LayerTimeline, one_layer
from planner.estimate.throughput.stages import (
    Overheads,
    Setup,
    Spans,
    decode_spans,
    dense_decode_spans,
    dense_prompt_spans,
    prompt_spans,
)
from planner.estimate.throughput.work import LayerWork
from planner.facts.quantities import MS_PER_S
from planner.facts.terms import Overlap


@dataclass(frozen=True)
class MoeLayers:
    """The number of MoE layers of one kind, and the timeline of one such layer."""

    count: int
    timeline: LayerTimeline
    spans: tuple[Spans, ...]  # seconds of each span, by micro-batch


@dataclass(frozen=True)
class StepTime:
    """The time of one step in seconds, part by part."""

    moe_layers: Seconds
    dense_layers: Seconds
    head: Seconds
    drafts: Seconds  # of an MTP module
    host: Seconds
    exposed: Seconds  # part of `moe_layers` spent waiting for exchanges
    moe_kinds: tuple[MoeLayers, ...]

    @property
    def usual(self) -> MoeLayers | None:
        """Return the most frequent kind of MoE layer, the first among equals; None if there are no MoE layers."""
        return max(self.moe_kinds, key=lambda each: each.count, default=None)

    @property
    def seconds(self) -> Seconds:
        """Return the time of the whole step."""
        return Seconds(self.moe_layers + self.dense_layers + self.head + self.drafts + self.host)


def decode_step(
    setup: Setup, requests: float, kv_tokens: float, drafts: int = 0, *, with_spans: bool = False
) -> StepTime:
    """Return the time of a decode step that generates one token for each of `requests` with `kv_tokens` of KV each.

    `requests` counts the requests of one attention group. With `drafts`, the step also verifies that many drafts per
    request, and drafts as many for the next step.
    """
    queries, unit, model = 1 + drafts, setup.unit, setup.model
    load = (_micro_batch_rows(requests, setup.overlap), kv_tokens, queries)
    layers = _layers(
        setup,
        lambda layer: decode_spans(setup, layer, *load),
        lambda layer: dense_decode_spans(setup, layer, *load),
        with_spans=with_spans,
    )
    rows = requests * queries
    answering = rows / unit.attention_tp if not unit.shares_all else rows
    head = operations.head_time(setup.machine, model.head_weights, model.head_flops, answering)
    return _step(layers, head, _draft_time(setup, requests, kv_tokens, drafts), setup.overheads)


def prompt_step(
    setup: Setup,
    tokens: float,
    context: float,
    prompt_tokens: float,
    *,
    with_drafts: bool = False,
    with_spans: bool = False,
) -> StepTime:
    """Return the time of a prefill step that computes `tokens` prompt tokens in each attention group.

    A token reads `context` tokens of its prompt on average, and `prompt_tokens` of each prompt are computed. With
    drafts, an MTP module also computes its KV of the prompts.
    """
    load = (_micro_batch_rows(tokens, setup.overlap), context, prompt_tokens)
    layers = _layers(
        setup,
        lambda layer: prompt_spans(setup, layer, *load),
        lambda layer: dense_prompt_spans(setup, layer, *load),
        with_spans=with_spans,
    )
    head = operations.head_time(setup.machine, setup.model.head_weights, setup.model.head_flops, tokens / prompt_tokens)
    drafted = _prompt_draft_time(setup, tokens, context, prompt_tokens) if with_drafts else Seconds(0)
    return _step(layers, head, drafted, setup.overheads)


def _draft_time(setup: Setup, requests: float, kv_tokens: float, drafts: int) -> Seconds:
    """Return the time in which the MTP module drafts `drafts` tokens for each request of an attention group."""
    if drafts == 0:
        return Seconds(0.0)
    assert setup.model.draft is not None
    rows = (1 + drafts, *[1] * (drafts - 1))
    spans = {queries: decode_spans(setup, setup.model.draft, requests, kv_tokens, queries) for queries in set(rows)}
    return Seconds(sum(_pass_time(setup, spans[queries], requests * queries, requests) for queries in rows))


def _prompt_draft_time(setup: Setup, tokens: float, context: float, prompt_tokens: float) -> Seconds:
    """Return the time in which the MTP module computes its KV of `tokens` prompt tokens in an attention group."""
    assert setup.model.draft is not None
    alone = replace(setup, overlap="none")
    spans = prompt_spans(alone, setup.model.draft, tokens, context, prompt_tokens)
    return _pass_time(setup, spans, tokens, tokens / prompt_tokens)


def _pass_time(setup: Setup, spans: Spans, rows: float, answering: float) -> Seconds:
    machine, model, unit = setup.machine, setup.model, setup.unit
    assert model.draft_input is not None
    share = 1 if unit.shares_all else unit.attention_tp  # rows of a group per row that a GPU computes elsewhere
    projected = operations.dense_ffn_time(machine, model.draft_input, rows / share)
    head = operations.head_time(machine, model.head_weights, model.head_flops, answering / share)
    return Seconds(one_layer([spans], "none").seconds + projected + head)


def _micro_batch_rows(rows: float, overlap: Overlap) -> float:
    """Return the number of rows of a micro-batch: half of a step's `rows`, or all of them without overlap."""
    return rows / _num_micro_batches(overlap)


def _num_micro_batches(overlap: Overlap) -> int:
    return 1 if overlap == "none" else 2


def _layers(
    setup: Setup,
    moe_spans: Callable[[LayerWork], Spans],
    dense_spans: Callable[[LayerWork], Spans],
    *,
    with_spans: bool,
) -> tuple[Seconds, tuple[MoeLayers, ...]]:
    """Return the time of all dense layers, and the timeline of each kind of MoE layer.

    Micro-batches are equally large, and dense layers overlap nothing.
    """
    num_parts, dense = _num_micro_batches(setup.overlap), 0.0
    kinds: list[MoeLayers] = []
    for layer, count in setup.model.layers.items():
        if layer.expert is None:
            dense += num_parts * count * sum(dense_spans(layer).values())
            continue
        spans = (moe_spans(layer),) * num_parts
        kinds.append(MoeLayers(count, one_layer(spans, setup.overlap, with_spans=with_spans), spans))
    return Seconds(dense), tuple(kinds)


def _step(
    layers: tuple[Seconds, tuple[MoeLayers, ...]], head: Seconds, drafts: Seconds, overheads: Overheads
) -> StepTime:
    dense, kinds = layers
    return StepTime(
        moe_layers=Seconds(sum(each.count * each.timeline.seconds for each in kinds)),
        dense_layers=dense,
        head=head,
        drafts=drafts,
        host=Seconds(overheads.host_ms / MS_PER_S),
        exposed=Seconds(sum(each.count * each.timeline.exposed for each in kinds)),
        moe_kinds=kinds,
    )

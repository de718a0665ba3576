"""Compute the time in which an MTP module drafts tokens, or computes its KV of prompts.

    decode     one pass over all rows that the step verified, and for each further draft a pass over one token per
               request; each pass has a projection of state and embedding, a layer like the main model's, and the head
    prefill    one pass over the step's prompts, with the head for those that end

A pass is one layer long, so it overlaps nothing. Wrong drafts cost the same, because every request has the same number
of rows. One module makes all drafts, from its own state after the first, as in SGLang and vLLM.

Source: github.com/deepseek-ai/DeepSeek-V3 0b39205a README_WEIGHTS.md (what a module consists of); sglang 0.5.23
speculative/eagle_worker_v2.py (passes).
"""

from dataclasses import replace

from planner.estimate.throughput import operations
from planner.estimate.throughput.dimensions import Seconds
from planner.estimate.throughput.overlap import one_layer
from planner.estimate.throughput.stages import Setup, Spans, decode_spans, prompt_spans

__all__ = ["draft_time", "prompt_draft_time"]


def draft_time(setup: Setup, requests: float, kv_tokens: float, drafts: int) -> Seconds:
    """Return the time to draft `drafts` tokens for each of the `requests` of an attention group."""
    if drafts == 0:
        return Seconds(0.0)
    assert setup.model.draft is not None
    rows = (1 + drafts, *[1] * (drafts - 1))
    spans = {queries: decode_spans(setup, setup.model.draft, requests, kv_tokens, queries) for queries in set(rows)}
    return Seconds(sum(_pass_time(setup, spans[queries], requests * queries, requests) for queries in rows))


def prompt_draft_time(setup: Setup, tokens: float, context: float, prompt_tokens: float) -> Seconds:
    """Return the time to compute the module's KV of `tokens` prompt tokens in an attention group."""
    assert setup.model.draft is not None
    alone = replace(setup, overlap="none")
    spans = prompt_spans(alone, setup.model.draft, tokens, context, prompt_tokens)
    return _pass_time(setup, spans, tokens, tokens / prompt_tokens)


def _pass_time(setup: Setup, spans: Spans, rows: float, answering: float) -> Seconds:
    machine, model, unit = setup.machine, setup.model, setup.unit
    assert model.draft_input is not None
    share = (
        1 if unit.shares_all else unit.attention_tp
    )  # rows of a group per row that one GPU computes outside attention
    projected = operations.dense_ffn_time(machine, model.draft_input, rows / share)
    head = operations.head_time(machine, model.head_weights, model.head_flops, answering / share)
    return Seconds(one_layer([spans], "none").seconds + projected + head)

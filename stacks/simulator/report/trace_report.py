"""Traces that were played, as a table for people and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from planner.report.columns import format_table, wrap_note
from stacks.simulator.flows.latency import QUANTILES
from stacks.simulator.report.day_json import round_figure
from stacks.simulator.report.figures import Figure, shorten_titles, table_rows
from stacks.simulator.requests.columns import ReplayColumn, Values

__all__ = ["replay_json", "replay_text"]

NOTE = "All units serve all the time, as fast as is expected; rates are until the last request is done."


def replay_text(columns: Sequence[ReplayColumn]) -> str:
    """Return played traces as a table for people."""
    first = columns[0]
    came = len(first.replay.jobs) + first.replay.refused + first.replay.too_long
    heads, notes = shorten_titles([each.title for each in columns])
    rows = table_rows(REPLAY_FIGURES, heads, columns)
    head = f"{first.plan.spec.name}: a trace of {came:,} requests, one by one"
    lines = [line for note in [*notes, NOTE] for line in wrap_note(note)]
    return "\n".join([head, "", format_table(list(rows)), "", *lines])


def replay_json(columns: Sequence[ReplayColumn]) -> dict[str, Any]:
    """Return played traces as the document of `--format json`."""
    return {"name": columns[0].plan.spec.name, "columns": [_column(each) for each in columns]}


def _column(column: ReplayColumn) -> dict[str, Any]:
    return {
        "title": column.title,
        "set": dict(column.variant.changes),
        "scale": column.variant.scale,
        "balancer": column.replay.policy.value,
        "plan_digest": column.plan.plan.digest,
        "figures": {figure.name: round_figure(figure.value(column)) for figure in REPLAY_FIGURES},
        "samples": [asdict(each) for each in column.replay.samples],
    }


def _latency(kind: str, quantile: float, form: str, factor: float, unit: str) -> Figure[ReplayColumn]:
    percentile = f"p{quantile * 100:g}"

    def value(one: ReplayColumn) -> float | None:
        values: Values = getattr(one, kind)
        return float(np.quantile(values, quantile)) * 1e3 if len(values) else None

    return Figure(f"{kind}_{percentile}_ms", f"{kind.upper()} {percentile}, {unit}", value, form, factor)


def _mean(one: ReplayColumn, name: str) -> float:
    return float(np.mean([getattr(each, name) for each in one.replay.samples]))


REPLAY_FIGURES: tuple[Figure[ReplayColumn], ...] = (
    *(_latency("ttft", each, ",.2f", 1e-3, "s") for each in QUANTILES),
    *(_latency("tpot", each, ",.1f", 1.0, "ms") for each in QUANTILES),
    Figure("ttft_kept", "TTFT kept", lambda one: one.share_kept(one.ttft, one.plan.spec.slo.ttft_ms), ".2%"),
    Figure("tpot_kept", "TPOT kept", lambda one: one.share_kept(one.tpot, one.plan.spec.slo.tpot_ms), ".2%"),
    Figure("done", "requests done", lambda one: len(one.replay.jobs), ",.0f", has_zeros=True),
    Figure("refused", "refused with 429", lambda one: one.replay.refused, ",.0f"),
    Figure("too_long", "refused as too long", lambda one: one.replay.too_long, ",.0f"),
    Figure("seconds", "until all are done, s", lambda one: one.replay.seconds, ",.1f"),
    Figure(
        "prompt_tokens_per_s",
        "prompt tokens/s",
        lambda one: one.rate_per_s(lambda _: one.prompt_tokens),
        ",.0f",
    ),
    Figure(
        "output_tokens_per_s",
        "output tokens/s",
        lambda one: one.rate_per_s(lambda found: sum(job.output for job in found.jobs)),
        ",.0f",
    ),
    Figure(
        "cache_hit_rate",
        "cache hits",
        lambda one: sum(job.hits for job in one.replay.jobs) / one.prompt_tokens if one.prompt_tokens else None,
        ".1%",
    ),
    Figure(
        "prompt_busy",
        "prompt units busy",
        lambda one: one.rate_per_s(lambda found: found.prompt_busy_s / max(found.num_prompt_units, 1)),
        ".1%",
    ),
    Figure(
        "peak_queue",
        "prompts in queue, most",
        lambda one: max(each.queued_prompts for each in one.replay.samples),
        ",.0f",
    ),
    Figure("running", "requests at tokens, mean", lambda one: _mean(one, "running"), ",.1f"),
    Figure("kv_used", "KV in use, mean", lambda one: _mean(one, "kv_used"), ".2%"),
    Figure("kv_most", "KV in use, fullest rank", lambda one: _mean(one, "kv_most"), ".2%"),
)

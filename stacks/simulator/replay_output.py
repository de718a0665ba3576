"""Traces that were played, as a table for people and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.plan.columns import filled, table
from stacks.simulator.document import rounded
from stacks.simulator.figures import short, side_by_side
from stacks.simulator.replayed import REPLAY_FIGURES, ReplayColumn

__all__ = ["replay_json", "replay_text"]

NOTE = "All units serve all the time, as fast as is expected; rates are until the last request is done."


def replay_text(columns: Sequence[ReplayColumn]) -> str:
    """Return the table."""
    first = columns[0]
    came = len(first.replay.jobs) + first.replay.refused + first.replay.too_long
    heads, notes = short([each.title for each in columns])
    rows = side_by_side(REPLAY_FIGURES, heads, columns)
    head = f"{first.plan.name}: a trace of {came:,} requests, one by one"
    lines = [line for note in [*notes, NOTE] for line in filled(note)]
    return "\n".join([head, "", table(list(rows)), "", *lines])


def replay_json(columns: Sequence[ReplayColumn]) -> dict[str, Any]:
    """Return the document of `--format json`."""
    return {"name": columns[0].plan.name, "columns": [_column(each) for each in columns]}


def _column(column: ReplayColumn) -> dict[str, Any]:
    return {
        "title": column.title,
        "set": dict(column.variant.changes),
        "scale": column.variant.scale,
        "balancer": column.replay.policy.value,
        "plan_digest": column.plan.plan.digest,
        "figures": {figure.name: rounded(figure.value(column)) for figure in REPLAY_FIGURES},
        "samples": [asdict(each) for each in column.replay.samples],
    }

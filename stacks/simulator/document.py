"""Played days as the JSON of `tidemill simulate --format json`; docs/simulate.md says what its keys mean."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from stacks.simulator.columns import Column
from stacks.simulator.curves import Curve
from stacks.simulator.figures import FIGURES
from stacks.simulator.latency import mean_tpot, mean_ttft

__all__ = ["rounded", "simulation_json"]

DIGITS = 6
CURVES = (
    *("asked", "refused", "prompts", "tokens", "restarted", "cut"),
    *("queued_prompts", "queued_requests", "prompt_busy", "requests", "kv_used"),
    *("nodes_on", "nodes_taken", "prompt_units", "token_units"),
)
MILLI = 1e3


def simulation_json(columns: Sequence[Column]) -> dict[str, Any]:
    """Return the document."""
    first = columns[0].day
    return {"name": first.plan.name, "date": first.date, "columns": [_column(each) for each in columns]}


def _column(column: Column) -> dict[str, Any]:
    day = column.day
    return {
        "title": column.variant.title,
        "set": dict(column.variant.changes),
        "scale": column.variant.scale,
        "plan_digest": day.plan.plan.digest,
        "timezone": day.plan.schedule.timezone if day.plan.schedule else "UTC",
        "outages": [vars(each) for each in day.outages],
        "figures": {
            figure.name: {level: rounded(figure.value(each)) for level, each in day.outcomes.items()}
            for figure in FIGURES
        },
        "curves": _curves(column),
    }


def _curves(column: Column) -> dict[str, list[float | None]]:
    """Return what happened minute by minute, as it is expected; latencies are means."""
    service, curves = column.day.services["mid"], column.day.curves["mid"]
    found = {name: _curve(getattr(curves, name)) for name in CURVES}
    found["ttft_ms"] = _curve(mean_ttft(service, curves) * MILLI)
    found["tpot_ms"] = _curve(mean_tpot(curves) * MILLI)
    return found


def _curve(curve: Curve) -> list[float | None]:
    return [rounded(float(each)) for each in curve]


def rounded(value: float | None) -> float | None:
    """Return a figure with the digits that it has; None for what has no value, and for what never ends."""
    return None if value is None or not isfinite(value) else float(f"{value:.{DIGITS}g}")

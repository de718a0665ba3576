"""Simulated days as the JSON of `tidemill simulate --format json`; docs/simulate.md says what its keys mean."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from stacks.simulator.flows.curves import Curve
from stacks.simulator.flows.day import DayColumn
from stacks.simulator.flows.latency import mean_tpot, mean_ttft
from stacks.simulator.flows.live_maps import PlayedMaps
from stacks.simulator.report.figures import FIGURES
from stacks.simulator.speed import Level

__all__ = ["round_figure", "simulation_json"]

DIGITS = 6
CURVES = (
    *("asked", "refused", "prompts", "tokens", "restarted", "cut"),
    *("queued_prompts", "queued_requests", "prompt_busy", "requests", "kv_used"),
    *("nodes_on", "nodes_taken", "prompt_units", "token_units"),
)
BALANCES = ("planned", "live")
MILLI = 1e3


def simulation_json(columns: Sequence[DayColumn]) -> dict[str, Any]:
    """Return the simulated days of all columns as a JSON document."""
    first = columns[0].day
    return {"name": first.plan.spec.name, "date": first.date, "columns": [_column(each) for each in columns]}


def _column(column: DayColumn) -> dict[str, Any]:
    day = column.day
    return {
        "title": column.variant.title,
        "set": dict(column.variant.changes),
        "scale": column.variant.scale,
        "plan_digest": day.plan.plan.digest,
        "timezone": day.plan.schedule.timezone if day.plan.schedule else "UTC",
        "outages": [vars(each) for each in day.outages],
        "figures": {
            figure.name: {level: round_figure(figure.value(each)) for level, each in day.outcomes.items()}
            for figure in FIGURES
        },
        "curves": _curves(column),
    } | ({"live_maps": {phase: _maps(levels) for phase, levels in day.maps.items()}} if day.maps else {})


def _maps(levels: Mapping[Level, PlayedMaps]) -> dict[Level, dict[str, Any]]:
    """Return level -> the maps of a unit, in which `planned` and `live` are max/mean."""
    rounded = {level: {name: round_figure(getattr(each, name)) for name in BALANCES} for level, each in levels.items()}
    return {level: vars(each) | rounded[level] for level, each in levels.items()}


def _curves(column: DayColumn) -> dict[str, list[float | None]]:
    """Return name -> value of each minute, at the expected speed. Latencies are means over the minute."""
    service, curves = column.day.services["mid"], column.day.curves["mid"]
    found = {name: _curve(getattr(curves, name)) for name in CURVES}
    found["ttft_ms"] = _curve(mean_ttft(service, curves) * MILLI)
    found["tpot_ms"] = _curve(mean_tpot(curves) * MILLI)
    return found


def _curve(curve: Curve) -> list[float | None]:
    return [round_figure(float(each)) for each in curve]


def round_figure(value: float | None) -> float | None:
    """Return a figure rounded to `DIGITS` significant digits; None for NaN and for infinity."""
    return None if value is None or not isfinite(value) else float(f"{value:.{DIGITS}g}")

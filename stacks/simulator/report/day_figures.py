"""Simulated days as a section of the plan's page and as a picture: figures with a line for each variant.

A single variant has lines of the slowest and the fastest speed beside it, as its prediction allows. A minute in which
no request is answered has no latency: the line has a gap there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.command.printed import write_result
from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, MINUTE_S, hh_mm
from planner.facts.quantities import MS_PER_S
from planner.report.page.day import HOURS
from planner.report.page.figures import Figure, Line, Steps, Table
from planner.report.page.page import plan_page
from planner.report.page.sections import Section
from planner.report.picture import draw_sections
from planner.spec.operating_point import SloSpec
from stacks.simulator.flows.curves import Curve, Curves
from stacks.simulator.flows.day import DayColumn
from stacks.simulator.flows.latency import mean_tpot, mean_ttft
from stacks.simulator.flows.service import Service
from stacks.simulator.report.day_text import day_notes, describe_day, figure_rows
from stacks.simulator.report.figures import shorten_titles
from stacks.simulator.speed import Level

__all__ = ["day_page", "draw_days"]

SPEEDS: dict[Level, tuple[str, str]] = {  # level -> (kind of line, words)
    "low": ("slowest", "at the slowest speed"),
    "high": ("fastest", "at the fastest speed"),
    "mid": ("variant0", "at the expected speed"),
}
MAX_LINES = 4  # whose colours readers tell apart


@dataclass(frozen=True)
class _Panel:
    """One figure of the page: a title, and the value that it draws for each variant and minute of the day."""

    title: str
    unit: str
    value: Callable[[Service, Curves], Curve]
    # what is drawn once, for the first variant: kind of line, words, value
    beside: tuple[str, str, Callable[[Service, Curves], Curve]] | None = None
    promised: Callable[[SloSpec], float | None] = lambda _: None


def day_page(columns: Sequence[DayColumn]) -> str:
    """Return the HTML page of the first variant's plan. It begins with the simulated days of all variants."""
    return plan_page(columns[0].day.plan.plan, more=[_section(columns)])


def draw_days(columns: Sequence[DayColumn], path: Path) -> None:
    """Draw the days of all variants into the file at `path`, in the format of its suffix.

    Raises OutputError if that fails.
    """
    plan = columns[0].day.plan.plan
    write_result(path, draw_sections(plan, None, [_section(columns)], path.suffix.removeprefix(".")))


def _section(columns: Sequence[DayColumn]) -> Section:
    heads, long = shorten_titles([each.variant.title for each in columns])
    head, *rows = figure_rows(columns, heads)
    figures: list[Figure] = [
        Table(head, rows, "Figures of the day"),
        *(_draw(panel, columns, heads) for panel in PANELS),
    ]
    notes = Table(("what happened",), [(each,) for each in [*long, *day_notes(columns, heads)]], "Notes")
    day = describe_day(columns[0])
    intro = f"{day[0].upper()}{day[1:]}, minute by minute."
    return Section("simulated", "The simulated day", intro, [(None, each) for each in (*figures, notes)])


def _draw(panel: _Panel, columns: Sequence[DayColumn], heads: Sequence[str]) -> Steps:
    drawn, legend = list[tuple[str, Curve]](), dict[str, str]()
    first = columns[0].day
    if panel.beside is not None:
        kind, words, value = panel.beside
        drawn.append((kind, value(first.services["mid"], first.curves["mid"])))
        legend[kind] = words + (f", {heads[0]}" if len(columns) > 1 else "")
    if len(columns) == 1:
        for level, (kind, words) in SPEEDS.items():
            drawn.append((kind, panel.value(first.services[level], first.curves[level])))
            legend[kind] = words
    else:
        for number, (column, head) in enumerate(zip(columns[:MAX_LINES], heads, strict=False)):
            drawn.append((f"variant{number}", panel.value(column.day.services["mid"], column.day.curves["mid"])))
            legend[f"variant{number}"] = head
    lines = [line for kind, curve in drawn for line in _stretches(kind, curve)]
    for promised in sorted({each for column in columns if (each := panel.promised(column.day.plan.spec.slo))}):
        lines.append(Line("promise", ((0, promised), (DAY_MINUTES, promised))))
        legend["promise"] = "promised (slo)"
    left = len(columns) - MAX_LINES
    return Steps(
        title=panel.title,
        end=DAY_MINUTES,
        labels=HOURS,
        areas=(),
        lines=lines,
        table=_hourly_table([(legend[kind], curve) for kind, curve in drawn]),
        legend=legend,
        y_title=panel.unit,
        note=f"The figures of {left} more are in the first table." if left > 0 else "",
        has_clock=first.plan.plan.switches_units,
    )


def _stretches(kind: str, curve: Curve) -> Iterator[Line]:
    """Yield a line for each stretch of minutes with a value.

    Neighbouring minutes with the same value are one segment.
    """
    known = np.isfinite(curve)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False])).astype(int)))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        values = curve[begin:end].tolist()
        starts = [0, *(place for place in range(1, len(values)) if values[place] != values[place - 1])]
        ends = [*starts[1:], len(values)]
        yield Line(
            kind,
            [(begin + at, values[start]) for start, stop in zip(starts, ends, strict=True) for at in (start, stop)],
        )


def _hourly_table(curves: Sequence[tuple[str, Curve]]) -> Table:
    """Return a table with the mean of each curve in each hour. Minutes without a value do not count."""
    rows = []
    for begin in range(0, DAY_MINUTES, HOUR_MINUTES):
        hours = [curve[begin : begin + HOUR_MINUTES] for _, curve in curves]
        known = [hour[np.isfinite(hour)] for hour in hours]
        rows.append((hh_mm(begin), *(f"{each.mean():,.4g}" if len(each) else "-" for each in known)))
    return Table(("hour from, mean", *(words for words, _ in curves)), rows)


def _refused_share(_: Service, curves: Curves) -> Curve:
    return np.where(curves.asked > 0, 100 * curves.refused / np.maximum(curves.asked, 1e-12), np.nan)


PANELS = (
    _Panel(
        "Output",
        "tokens/s",
        lambda _, curves: curves.tokens / MINUTE_S,
        beside=(
            "asked",
            "what traffic asks for",
            lambda service, curves: curves.asked * service.request.output / MINUTE_S,
        ),
    ),
    _Panel(
        "Nodes that are on",
        "nodes",
        lambda _, curves: curves.nodes_on,
        beside=("served", "with those that warm up or drain", lambda _, curves: curves.nodes_taken),
    ),
    _Panel("TTFT, mean", "s", mean_ttft, promised=lambda slo: slo.ttft_ms and slo.ttft_ms / MS_PER_S),
    _Panel("TPOT, mean", "ms", lambda _, curves: mean_tpot(curves) * MS_PER_S, promised=lambda slo: slo.tpot_ms),
    _Panel("KV in use", "% of the room", lambda _, curves: 100 * curves.kv_used),
    _Panel("Refused with 429", "% of requests", _refused_share),
)

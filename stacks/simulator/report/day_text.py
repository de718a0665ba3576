"""Played days as a table for people: a row for each figure, a column for each variant."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.demand import PhaseLoad
from planner.estimate.failures import suggest_spare
from planner.facts.calendar import entry_of
from planner.facts.day import MINUTE_S, hh_mm
from planner.facts.quantities import counted
from planner.report.columns import format_table, wrap_note
from planner.schedule.schedule import NOT_EXECUTED
from stacks.simulator.flows.day import DayColumn
from stacks.simulator.flows.live_maps import WINDOW_S, PlayedMaps
from stacks.simulator.report.figures import FIGURES, GIGA, format_figure, shorten_titles, table_rows

__all__ = ["day_notes", "describe_day", "figure_rows", "simulation_text"]

MAX_STRETCHES = 6
DRIFT_NOTE = f"That loads drift so much every {WINDOW_S / MINUTE_S:g} min is assumed."


def simulation_text(columns: Sequence[DayColumn]) -> str:
    """Return the table of simulated days, with notes below it."""
    plan = columns[0].day.plan
    clock = plan.schedule.timezone if plan.schedule else "UTC"
    heads, long = shorten_titles([each.variant.title for each in columns])
    rows = figure_rows(columns, heads)
    lines = [line for note in [*long, *day_notes(columns, heads)] for line in wrap_note(note)]
    return "\n".join(
        [
            f"{plan.spec.name}: {describe_day(columns[0])}, minute by minute; times are in {clock}",
            "",
            format_table(list(rows)),
            "",
            *lines,
        ]
    )


def describe_day(column: DayColumn) -> str:
    """Return words for the simulated day.

    If the spec has no traffic of its own for the requested date, the words say what kind of day it is.
    """
    date, spec = column.day.date, column.day.plan.spec
    if date is None:
        return "one day"
    own = (spec.traffic, spec.schedule)
    others = [other.days for section in own if section is not None for other in section.other_days]
    if entry_of(date, others) is not None:
        return date
    return f"a usual day, since the spec has nothing about {date}"


def figure_rows(columns: Sequence[DayColumn], heads: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows, the heading first.

    A single variant has a column for each of three speeds. Of several variants, each has one column, at the expected
    speed.
    """
    if len(columns) == 1:
        return _speed_rows(columns[0])
    return table_rows(FIGURES, heads, [each.day.outcomes["mid"] for each in columns])


def _speed_rows(column: DayColumn) -> Iterator[tuple[str, ...]]:
    """Yield the rows of one variant's table: a heading, then each figure at the expected, slowest and fastest speed."""
    yield "", "expected", "slowest", "fastest"
    for figure in FIGURES:
        mid, low, high = (figure.value(column.day.outcomes[level]) for level in ("mid", "low", "high"))
        if figure.is_shown((mid, low, high)):
            others = () if low == mid == high else (low, high)
            yield figure.title, *(format_figure(figure, each) for each in (mid, *others)), *[""] * (2 - len(others))


def day_notes(columns: Sequence[DayColumn], heads: Sequence[str]) -> Iterator[str]:
    """Yield the notes below the table: how SLO attainment is counted, that speeds are predicted, and on each column."""
    kept = (each.day.outcomes["mid"].latencies for each in columns)
    if any(each.ttft_kept is not None or each.tpot_kept is not None for each in kept):
        yield "Requests are kept if the first token comes within slo.ttft_ms, tokens if they come within slo.tpot_ms."
    if len(columns) == 1:
        yield "How fast units are is a prediction: see the plan for what its range rests on."
    for column, head in zip(columns, heads, strict=True):
        before = "" if len(columns) == 1 else f"{head}: "
        yield from (f"{before}{note}" for note in _column_notes(column))


def _column_notes(column: DayColumn) -> Iterator[str]:
    plan, curves = column.day.plan, column.day.curves["mid"]
    demand, phases = plan.demand_on(column.day.date), {unit.name: unit.phase for unit in plan.units}
    if plan.schedule is not None and plan.schedule.switches and plan.running_schedule is None:
        yield NOT_EXECUTED
    for load in demand:
        if not load.served_per_s:
            yield f"No {load.phase} unit is on at {load.at}, though requests come then."
        elif (asked := load.load * column.day.scale) > 1:
            most = load.share_of_most * column.day.scale
            yield (
                f"{load.phase} is asked for {asked:.0%} of what its units make at the operating point, at {load.at}, "
                f"and for {most:.0%} of the most that they can make."
            )
    if not curves.tokens.any():
        yield "no request is answered, so latencies have no value."
    refused, is_off = curves.refused > 0, curves.token_units == 0
    if times := _minute_ranges(refused & is_off):
        yield f"requests are refused {times}, since no unit is on."
    if times := _minute_ranges(refused & ~is_off):
        yield f"requests are refused {times}, since {_explain_refusals(demand)}."
    for outage in column.day.outages:
        back = f"until {hh_mm(outage.until)} on spare {outage.spare}" if outage.until is not None else "until midnight"
        offer = f": {words}" if (words := suggest_spare(plan.spec, plan.units, phases[outage.unit])) else ""
        yield f"{outage.unit} is out from {hh_mm(outage.since)} {back}, because {outage.node} fails{offer}."
    for failure in column.day.idle_failures:
        yield f"{failure.node} is a spare: its failure stops no unit, and from {hh_mm(failure.minute)} it is no spare."
    for levels in column.day.maps.values():
        maps, drifting = levels["mid"], levels["low"]
        yield (
            f"expert_load.live, {maps.unit}, which is on for {maps.hours:.4g} h: {_describe_maps(maps)}. "
            f"With the most drift that the plan allows for: {_describe_maps(drifting)}. {DRIFT_NOTE}"
        )


def _describe_maps(maps: PlayedMaps) -> str:
    changes = f"{maps.switches} of {counted(maps.decisions, 'decision')} change its map"
    moved = f" and move {maps.num_bytes / GIGA:,.4g} GB" if maps.switches else ""
    return f"{changes}{moved}; max/mean is {maps.planned:.3f} with the plan's map, and {maps.live:.3f} as it is"


def _explain_refusals(demand: Sequence[PhaseLoad]) -> str:
    """Return the reason why requests were refused. If phases are separate, it names the phase that is full."""
    loads = {load.phase: load.load for load in demand}
    if "mixed" in loads:
        return "units have as many requests as they take"
    is_waiting = loads.get("prefill", 0.0) > max(loads.get("decode", 0.0), 1.0)
    taken = "decode has as many requests as it takes"
    return f"{taken}, some of which wait for prefill" if is_waiting else taken


def _minute_ranges(marked: NDArray[np.bool_]) -> str:
    """Return the times of the `marked` minutes of a day as text, such as `10:30-11:10, 14:20-17:00` or `all day`."""
    if marked.all():
        return "all day"
    edges = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False])).astype(int)))
    parts = [f"{hh_mm(int(start))}-{hh_mm(int(end))}" for start, end in zip(edges[::2], edges[1::2], strict=True)]
    left = len(parts) - MAX_STRETCHES
    more = f" and at {left} other time{'s' if left > 1 else ''} (curves in the JSON have each minute)"
    return ", ".join(parts[:MAX_STRETCHES]) + (more if left > 0 else "")

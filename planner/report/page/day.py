"""The day of each phase: its units, one upon the other, against the traffic that asks for them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, hh_mm, minute_of, periods
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.report.page.figures import Area, Line, Steps, Table, by_phase
from planner.report.report import format_value

__all__ = ["show_day"]

LABEL_HOURS = 3
STRIP = 1.05, 1.09  # of the highest value


class Part(NamedTuple):
    """Minutes of the day in which nothing changes. Rates are None if the phase's speed or traffic is unknown."""

    begin: int
    end: int
    units: int
    most: float | None = None
    served: float | None = None
    asked: float | None = None


def show_day(plan: Plan) -> Iterator[Steps]:
    """Yield the day of each phase; none where all units are always on and nothing asks for tokens."""
    if plan.schedule is None and not plan.demand:
        return
    for phase, _ in by_phase(plan.phases):
        parts = list(_parts(plan, phase))
        yield _with_traffic(plan, phase, parts) if parts[0].asked is not None else _units_alone(plan, phase, parts)


def _parts(plan: Plan, phase: Phase) -> Iterator[Part]:
    """Yield the day's parts from midnight."""
    steps = sorted(plan.schedule.steps, key=lambda step: step.at) if plan.schedule else ()
    counts = [(minute_of(step.at), getattr(step, f"{phase}_units") or 0) for step in steps]
    counts = counts or [(0, len(plan.units_of(phase)))]
    demand = (plan.demand or {}).get(phase)
    for each in demand.stretches if demand else ():
        begin = minute_of(each.at)
        rates = each.most_tokens_per_s, each.served_tokens_per_s, each.asked_tokens_per_s
        yield Part(begin, begin + each.minutes, _count_at(counts, begin), *rates)
    if demand is None or not demand.stretches:
        cuts = sorted({0, *(minute for minute, _ in counts), DAY_MINUTES})
        yield from (Part(begin, end, _count_at(counts, begin)) for begin, end in pairwise(cuts))


def _count_at(counts: Sequence[tuple[int, int]], minute: int) -> int:
    """Return the units that are on; before the first time of the day they are those of the last."""
    return max((each for each in counts if each[0] <= minute), default=counts[-1])[1]


def _units_alone(plan: Plan, phase: Phase, parts: Sequence[Part]) -> Steps:
    rows = [(*_times(part), str(part.units)) for part in parts]
    table = Table(("from", "to", "units on"), rows)
    return _day(plan, phase, _unit_areas(phase, parts, 1.0), (), "units", table, {}, "")


def _with_traffic(plan: Plan, phase: Phase, parts: Sequence[Part]) -> Steps:
    per_unit = max((part.most / part.units for part in parts if part.most and part.units), default=0.0)
    lines = [Line("served", _corners(parts, "served")), Line("asked", _corners(parts, "asked"))]
    legend = {"asked": "what traffic asks for", "served": "what units make at their operating point"}
    note = "The units make what traffic asks for in every hour, at the expected speed."
    short = [part for part in parts if part.asked is not None and part.asked > (part.most or 0.0)]
    areas = _unit_areas(phase, parts, per_unit)
    if short:
        legend |= {"beyond": "too few units: some of it waits or is refused"}
        times = periods((part.begin, part.end - part.begin) for part in short)
        note = f"Traffic asks for more than the units make at most: {times}."
        areas.append(_strip(parts, short))
    head = ("from", "to", "units on", "asked tokens/s", "at the operating point", "at most", "load over the most")
    return _day(plan, phase, areas, lines, "tokens/s", Table(head, [_row(part) for part in parts]), legend, note)


def _strip(parts: Sequence[Part], short: Sequence[Part]) -> Area:
    """Return a strip above the day, over the times that are `short` of units."""
    top = max(max(part.most or 0.0, part.asked or 0.0) for part in parts)
    low, high = (top * side for side in STRIP)
    return Area("beyond", [(part.begin, part.end, low, high) for part in short], "too few units")


def _day(
    plan: Plan,
    phase: Phase,
    areas: Sequence[Area],
    lines: Sequence[Line],
    y_title: str,
    table: Table,
    legend: dict[str, str],
    note: str,
) -> Steps:
    hours = range(0, DAY_MINUTES + 1, LABEL_HOURS * HOUR_MINUTES)
    return Steps(
        title=phase,
        end=DAY_MINUTES,
        labels=[(minute, f"{minute // HOUR_MINUTES:02}:00") for minute in hours],
        areas=areas,
        lines=lines,
        table=table,
        legend={f"unit {phase}": "units that are on, one upon the other"} | legend,
        y_title=y_title,
        note=note,
        least_step=1.0,
        has_clock=plan.switches_units,
    )


def _unit_areas(phase: Phase, parts: Sequence[Part], height: float) -> list[Area]:
    """Return an area for each unit, over the hours in which it is on."""
    most = max(part.units for part in parts)
    return [
        Area(
            f"unit {phase}",
            [(begin, end, index * height, (index + 1) * height) for begin, end in _hours_on(parts, index)],
            f"{phase}-{index}",
        )
        for index in range(most)
    ]


def _hours_on(parts: Sequence[Part], index: int) -> list[tuple[int, int]]:
    """Return when more than `index` units are on, adjacent parts joined."""
    found: list[tuple[int, int]] = []
    for part in parts:
        if part.units > index:
            joins = bool(found) and found[-1][1] == part.begin
            begin = found.pop()[0] if joins else part.begin
            found.append((begin, part.end))
    return found


def _corners(parts: Sequence[Part], name: str) -> list[tuple[float, float]]:
    return [(minute, getattr(part, name)) for part in parts for minute in (part.begin, part.end)]


def _row(part: Part) -> tuple[str, ...]:
    rates = (format_value(Row("", "", value or 0.0, "tokens/s")) for value in (part.asked, part.served, part.most))
    load = format_value(Row("", "", (part.asked or 0.0) / part.most, "share")) if part.most else "no unit"
    return (*_times(part), str(part.units), *rates, load)


def _times(part: Part) -> tuple[str, str]:
    return hh_mm(part.begin), "24:00" if part.end == DAY_MINUTES else hh_mm(part.end)

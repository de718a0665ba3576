"""The page's figures of the day: each phase's units that are on, stacked, and the traffic they have to serve."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, hh_mm, minute_of, periods
from planner.facts.terms import Phase
from planner.plan.expected import StretchDemand
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.plan.sections import Step
from planner.report.page.figures import Area, Line, Steps, Table, by_phase
from planner.report.report import Report, format_value

Counts = Sequence[tuple[int, int, int]]  # (begin, end, number of units that are on), from midnight to midnight

HOURS = [
    (minute, f"{minute // HOUR_MINUTES:02}:00") for minute in range(0, DAY_MINUTES + 1, 3 * HOUR_MINUTES)
]  # labels of a day's axis
STRIP = 1.05, 1.09  # bottom and top of the strip that marks too few units, over the highest value
HEAD = ("from", "to", "units on", "asked tokens/s", "at the operating point", "at most", "load over the most")


def show_day(plan: Plan, _: Report) -> Iterator[Steps]:
    """Yield a figure of each phase's ordinary day, then of weekends and the like (`other_days`).

    Yield nothing without a schedule and without traffic over the day.
    """
    for phase, _shape in by_phase(plan.phases):
        counts = count_units(plan, phase, plan.schedule.steps if plan.schedule else ())
        demand = (plan.demand or {}).get(phase)
        if demand and demand.stretches:
            yield _with_traffic(plan, phase, counts, demand.stretches)
        elif plan.schedule:
            yield _units_on(plan, phase, counts, phase)
    for other in plan.schedule.other_days if plan.schedule else ():
        for phase, _shape in by_phase(plan.phases):
            yield _units_on(plan, phase, count_units(plan, phase, other.steps), f"{phase} on {', '.join(other.days)}")


def count_units(plan: Plan, phase: Phase, steps: Sequence[Step]) -> Counts:
    """Return (begin, end, units on) of each period from midnight. The last step holds until the next day's first."""
    found = sorted((minute_of(step.at), getattr(step, f"{phase}_units")) for step in steps)
    starts = dict([(0, found[-1][1] if found else len(plan.units_of(phase))), *found])
    return [(begin, end, starts[begin]) for begin, end in pairwise([*starts, DAY_MINUTES])]


def _units_on(plan: Plan, phase: Phase, counts: Counts, title: str, height: float = 1.0) -> Steps:
    """Return the figure of a day with an area of `height` for each unit that is on."""
    areas = [
        Area(
            f"unit {phase}",
            [(begin, end, index * height, (index + 1) * height) for begin, end in _hours_on(counts, index)],
            f"{phase}-{index}",
        )
        for index in range(max(units for *_, units in counts))
    ]
    return Steps(
        title=title,
        end=DAY_MINUTES,
        labels=HOURS,
        areas=areas,
        lines=(),
        table=Table(HEAD[:3], [(hh_mm(begin), hh_mm(end), str(units)) for begin, end, units in counts]),
        legend={f"unit {phase}": "units that are on, stacked"},
        y_title="units",
        least_step=1.0,
        has_clock=plan.switches_units,
    )


def _hours_on(counts: Counts, index: int) -> list[tuple[int, int]]:
    """Return the periods in which unit `index` is on (more than `index` units are), adjacent periods joined."""
    found: list[tuple[int, int]] = []
    for begin, end, units in counts:
        if units > index:
            joins = bool(found) and found[-1][1] == begin
            found.append((found.pop()[0] if joins else begin, end))
    return found


def _with_traffic(plan: Plan, phase: Phase, counts: Counts, stretches: Sequence[StretchDemand]) -> Steps:
    """Return the figure of a day with traffic. Each unit's area is as high as the most tokens/s that one unit makes."""
    times = [(minute_of(each.at), minute_of(each.at) + each.minutes, each) for each in stretches]
    units = [next(units for begin, end, units in counts if begin <= minute < end) for minute, *_ in times]
    most_of_one = max(
        (each.most_tokens_per_s / on for on, each in zip(units, stretches, strict=True) if on), default=0.0
    )
    day = _units_on(plan, phase, counts, phase, most_of_one)
    short = [(begin, end) for begin, end, each in times if each.asked_tokens_per_s > each.most_tokens_per_s]
    top = max(day.reach, *(each.asked_tokens_per_s for each in stretches))
    strip = [(begin, end, top * STRIP[0], top * STRIP[1]) for begin, end in short]
    return replace(
        day,
        areas=[*day.areas, *([Area("beyond", strip, "too few units")] if short else [])],
        lines=[
            Line("served", [(at, each.served_tokens_per_s) for *sides, each in times for at in sides]),
            Line("asked", [(at, each.asked_tokens_per_s) for *sides, each in times for at in sides]),
        ],
        table=Table(HEAD, [_row(*each, on) for each, on in zip(times, units, strict=True)]),
        legend=_legend(day.legend, is_short=bool(short)),
        y_title="tokens/s",
        least_step=0.0,
        note=_say_short(short),
    )


def _legend(units: dict[str, str], *, is_short: bool) -> dict[str, str]:
    beyond = {"beyond": "too few units: some of it waits or is refused"} if is_short else {}
    return (
        units | {"asked": "what traffic asks for", "served": "what these units make at their operating point"} | beyond
    )


def _say_short(short: Sequence[tuple[int, int]]) -> str:
    if not short:
        return "At the expected speed the units make what traffic asks for in every hour."
    times = periods((begin, end - begin) for begin, end in short)
    return f"Traffic asks for more than the units make at most: {times}."


def _row(begin: int, end: int, each: StretchDemand, units: int) -> tuple[str, ...]:
    rates = (each.asked_tokens_per_s, each.served_tokens_per_s, each.most_tokens_per_s)
    load = format_value(Row("", "", rates[0] / rates[2], "share")) if rates[2] else "no unit"
    return hh_mm(begin), hh_mm(end), str(units), *(format_value(Row("", "", rate, "tokens/s")) for rate in rates), load

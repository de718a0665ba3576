"""The rule about past days of traffic: each of their times has one demand. `layout_rules.py` asks it with the others.

A forecast takes a gap for a time that it knows from other days only, and of two demands the larger one. Neither is what
was measured. What cannot be read is wrong already (`planner/facts/history.py`). An hour that clocks skipped is not
missing, and one that they showed twice may have two demands: both are asked of `schedule.timezone`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.facts.counted import counted
from planner.facts.day import DAY_MINUTES, DAY_S, hh_mm, minute_of
from planner.facts.timezones import is_timezone
from planner.facts.wall_clock import days_between, instants_of, offset_at
from planner.spec.rule import Broken, Rule, declare_in

if TYPE_CHECKING:
    from planner.facts.forecast import Forecast
    from planner.facts.history import History, PastDay

__all__ = ["RULES"]

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("traffic.history", "traffic.forecast", "schedule.timezone?")
def past_days_are_whole(_: str, forecast: "Forecast | None", zone: str | None) -> Iterator[Broken]:
    """Days without gaps, and none between them."""
    if forecast is None or not is_timezone(zone or "UTC"):
        return
    past = forecast.past
    for has, reason, fix in (*_contradictions(past, zone or "UTC"), *_gaps(past, zone or "UTC")):
        yield Broken(f"S624 must have one demand for each time of its days, {has}", reason, fix)


def _contradictions(past: "History", zone: str) -> Iterator[tuple[str, str, str]]:
    """Yield times that clocks show once, and that have two demands."""
    found = [each for each in past.contradicted if len(instants_of(each[:10], minute_of(each[11:]), zone)) < 2]
    if found:
        has = f"it has several for {counted(len(found), 'time')}, such as {found[0]}"
        yield has, "clocks show these times once", "keep one row for each time"


def _gaps(past: "History", zone: str) -> Iterator[tuple[str, str, str]]:
    """Yield times that single days lack, a last day that is not over, and days that are not there at all."""
    *before, last = past.days
    lacking = [f"{day.date}T{hh_mm(minute)}" for day in before for minute in _missing(day, zone)]
    if lacking:
        has = f"it lacks {counted(len(lacking), 'time')}, the first {lacking[0]}"
        yield has, "the forecast would know them from other days only", "add their rows, or remove these days"
    if missing := _missing(last, zone):
        measured = len(last.demand) - len(missing)
        has = f"it has {measured} of the {len(last.demand)} of its last day, {last.date}"
        reason = f"the forecast is for the day after it, {past.next_date}"
        yield has, reason, f"remove the rows of {last.date} to forecast that day"
    for one, following in zip(past.days, past.days[1:], strict=False):
        if (days := days_between(one.date, following.date) - 1) > 0:
            has = f"it has no rows for {counted(days, 'day')} between {one.date} and {following.date}"
            yield has, "growth and weekdays are told from dates", "add these days, or correct the dates"
            return


def _missing(day: "PastDay", zone: str) -> list[int]:
    """Return the minutes at which a day's demand is missing, though clocks showed them."""
    step = DAY_MINUTES // len(day.demand)
    minutes = [index * step for index, demand in enumerate(day.demand) if demand is None]
    (midnight,) = instants_of(day.date, 0, "UTC")
    if offset_at(midnight - DAY_S, zone) == offset_at(midnight + 2 * DAY_S, zone):
        return minutes  # clocks skip nothing around that day, and years of minutes are not asked one by one
    return [minute for minute in minutes if instants_of(day.date, minute, zone)]

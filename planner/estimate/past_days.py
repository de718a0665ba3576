"""Warnings about past days of traffic from which a day can be forecast, though hardly the one that was meant.

What cannot be read is an error instead (`planner/facts/history.py`). An hour that clocks skipped is not missing, and
one that they showed twice may have two demands: both are asked of `schedule.timezone`.
"""

from collections.abc import Iterator

from planner.facts.counted import counted
from planner.facts.day import DAY_MINUTES, DAY_S, hh_mm, minute_of
from planner.facts.history import History, PastDay
from planner.facts.wall_clock import days_between, instants_of, offset_at
from planner.problems.errors import Violation
from planner.spec.check import ResolvedSpec

__all__ = ["past_days"]

PATH = "traffic.history"


def past_days(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield a history of one day, rows that contradict each other, and what is missing."""
    traffic, forecast = spec.written.traffic, spec.forecast
    if traffic is None or forecast is None:
        return
    schedule = spec.written.schedule
    zone = schedule.timezone if schedule is not None else "UTC"
    if forecast.num_days == 1:
        rule = "W141 has one day only"
        reason = (
            f"nobody can tell from one day how days differ, so traffic.quantile ({traffic.quantile:g}) adds nothing"
        )
        yield Violation(PATH, traffic.history, rule, reason, "write more days into the file")
    for rule, reason, fix in (*_contradictions(forecast.past, zone), *_gaps(forecast.past, zone)):
        yield Violation(PATH, traffic.history, rule, reason, fix)


def _contradictions(past: History, zone: str) -> Iterator[tuple[str, str, str]]:
    """Yield times that clocks show once, and that have two demands."""
    found = [each for each in past.contradicted if len(instants_of(each[:10], minute_of(each[11:]), zone)) < 2]
    if found:
        rule = f"W145 has different demands for {counted(len(found), 'time')}, such as {found[0]}"
        reason = "the largest of them counts, as if clocks had shown that time twice"
        yield rule, reason, "keep one row for each time"


def _gaps(past: History, zone: str) -> Iterator[tuple[str, str, str]]:
    """Yield times that single days lack, a last day that is not over, and days that are not there at all."""
    *before, last = past.days
    lacking = [f"{day.date}T{hh_mm(minute)}" for day in before for minute in _missing(day, zone)]
    if lacking:
        rule = f"W146 lacks {counted(len(lacking), 'time')}, the first {lacking[0]}"
        yield rule, "the forecast knows them from other days only", "add their rows, if they were measured"
    if missing := _missing(last, zone):
        rule = (
            f"W146 has {len(last.demand) - len(missing)} of the {len(last.demand)} times of its last day, {last.date}"
        )
        reason = f"the forecast is for the day after it, {past.next_date}"
        yield rule, reason, f"remove the rows of {last.date} to forecast that day"
    for one, following in zip(past.days, past.days[1:], strict=False):
        if (days := days_between(one.date, following.date) - 1) > 0:
            rule = f"W146 has no rows for {counted(days, 'day')} between {one.date} and {following.date}"
            yield rule, "growth and weekdays are told from dates", "add these days, or correct the dates"
            return


def _missing(day: PastDay, zone: str) -> list[int]:
    """Return the minutes at which a day's demand is missing, though clocks showed them."""
    step = DAY_MINUTES // len(day.demand)
    minutes = [index * step for index, demand in enumerate(day.demand) if demand is None]
    (midnight,) = instants_of(day.date, 0, "UTC")
    if offset_at(midnight - DAY_S, zone) == offset_at(midnight + 2 * DAY_S, zone):
        return minutes  # clocks skip nothing around that day, and years of minutes are not asked one by one
    return [minute for minute in minutes if instants_of(day.date, minute, zone)]

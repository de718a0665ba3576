"""The rules of `traffic`.

A history must be complete. A forecast would fill a gap from other days, and would take the larger of two demands for
one time; neither was measured. Unreadable rows are rejected earlier (`planner/facts/history.py`). `schedule.timezone`
tells which hours clocks skip (they may be missing) and which they show twice (they may have two demands).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from planner.facts.calendar import days_between, instants_of, is_timezone, offset_at
from planner.facts.day import DAY_MINUTES, DAY_S, hh_mm, minute_of
from planner.facts.model import Model
from planner.facts.quantities import counted
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import Fix, nearest
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.traffic import HOURS

if TYPE_CHECKING:
    from planner.facts.forecast import Forecast
    from planner.facts.history import History, PastDay


def some_hour_has_demand(c: ValidValues) -> Iterator[Finding]:
    """Reject a profile without demand in any hour."""
    profile: Sequence[float] | None = c["traffic.profile"]
    if profile is None or any(profile):
        return
    fix = "leave it out to spread tokens evenly over the day"
    reason = "the day's tokens must arrive at some hour"
    yield Finding("traffic.profile", profile, "S610 must be above 0 in some hour", reason, fix)


def profile_entries_divide_hours(c: ValidValues) -> Iterator[Finding]:
    """Require the same number of profile entries in every hour, each for a whole number of minutes."""
    profile: Sequence[float] | None = c.get("traffic.profile")
    others: Sequence[Mapping[str, Any]] | None = c.get("traffic.other_days")
    counts = ", ".join(str(HOURS * parts) for parts in range(1, 61) if 60 % parts == 0)
    places = {f"traffic.other_days.{index}.profile": each.get("profile") for index, each in enumerate(others or ())}
    for place, each in {"traffic.profile": profile, **places}.items():
        if each is not None and not DAY_MINUTES % len(each) == 0 == len(each) % HOURS:
            rule = f"S616 must have the same number of entries for each hour, it has {len(each)} for 24 hours"
            fix = "write one entry for each hour, or for each equal part of an hour"
            yield Finding(place, each, rule, f"possible numbers are {counts}", fix)


def mean_request_fits_limit(c: ValidValues) -> Iterator[Finding]:
    """Reject a number of requests by which the mean request is too short, or longer than `max_request_tokens`.

    A request has at least one prompt token and one output token. If no limit is written, offer to raise it.
    """
    requests: float | None = c["traffic.requests"]
    prompts: float = c["traffic.input_tokens"]
    outputs: float = c["traffic.output_tokens"]
    model: Model | None = c.get("model.shapes")
    limits = {phase: f"{phase}.max_request_tokens" for phase in PHASES}
    longest = min(filter(None, map(c.get, limits.values())), default=None)
    if requests is None or longest is None:
        return
    if requests > (most := int(min(prompts, outputs))):
        reason = "every request has a token of prompt and one of output"
        rule = f"S504 must be at most {most:,}, the smaller number of tokens"
        yield Finding("traffic.requests", requests, rule, reason, nearest(most))
        return
    mean, least = ceil((prompts + outputs) / requests), ceil((prompts + outputs) / longest)
    if mean <= longest:
        return
    fix = nearest(least)
    if not any(map(c.is_given, limits.values())) and (model is None or mean <= model.max_position_embeddings):
        raised = {path: mean for phase, path in limits.items() if phase in c.sections}
        fix = Fix(f"write {' and '.join(f'{path}: {value}' for path, value in raised.items())}", (raised,))
    reason = f"a request has {mean:,} tokens on average, and none is longer"
    rule = f"S504 must be at least {least:,} with max_request_tokens {longest:,}"
    yield Finding("traffic.requests", requests, rule, reason, fix)


def history_excludes_profile(c: ValidValues) -> Iterator[Finding]:
    """Reject a history beside a profile: the profile is forecast from the history."""
    history: str | None = c["traffic.history"]
    if history is None or not c.is_given("traffic.profile"):
        return
    either = Fix("remove history or profile", ({"traffic.history": None}, {"traffic.profile": None}))
    reason = "the profile is forecast from these days"
    yield Finding("traffic.history", history, "S507 must not be combined with profile", reason, either)


def history_is_complete(c: ValidValues) -> Iterator[Finding]:
    """Reject a history with several demands for one time, with gaps in a day, or with missing days."""
    c.require("traffic.history")
    forecast: Forecast | None = c["traffic.forecast"]
    zone: str | None = c.get("schedule.timezone")
    if forecast is None or not is_timezone(zone or "UTC"):
        return
    past = forecast.past
    for has, reason, fix in (*_contradictions(past, zone or "UTC"), *_gaps(past, zone or "UTC")):
        rule = f"S624 must have one demand for each time of its days, {has}"
        yield Finding("traffic.history", c["traffic.history"], rule, reason, fix)


def _contradictions(past: "History", zone: str) -> Iterator[tuple[str, str, str]]:
    """Yield (problem, reason, fix) if the history has several demands for a time that clocks show only once."""
    found = [each for each in past.contradicted if len(instants_of(each[:10], minute_of(each[11:]), zone)) < 2]
    if found:
        has = f"it has several for {counted(len(found), 'time')}, such as {found[0]}"
        yield has, "clocks show these times once", "keep one row for each time"


def _gaps(past: "History", zone: str) -> Iterator[tuple[str, str, str]]:
    """Yield (problem, reason, fix) for gaps within days, for an incomplete last day, and for missing days."""
    *before, last = past.days
    lacking = [f"{day.date}T{hh_mm(minute)}" for day in before for minute in _missing_minutes(day, zone)]
    if lacking:
        has = f"it lacks {counted(len(lacking), 'time')}, the first {lacking[0]}"
        yield has, "the forecast would know them from other days only", "add their rows, or remove these days"
    if missing := _missing_minutes(last, zone):
        measured = len(last.demand) - len(missing)
        has = f"it has {measured} of the {len(last.demand)} of its last day, {last.date}"
        reason = f"the forecast is for the day after it, {past.next_date}"
        yield has, reason, f"remove the rows of {last.date} to forecast that day"
    for one, following in zip(past.days, past.days[1:], strict=False):
        if (days := days_between(one.date, following.date) - 1) > 0:
            has = f"it has no rows for {counted(days, 'day')} between {one.date} and {following.date}"
            yield has, "growth and weekdays follow from dates", "add these days, or correct the dates"
            return


def _missing_minutes(day: "PastDay", zone: str) -> list[int]:
    """Return the minutes of a day for which the history has no demand, except those that clocks skipped."""
    step = DAY_MINUTES // len(day.demand)
    minutes = [index * step for index, demand in enumerate(day.demand) if demand is None]
    (midnight,) = instants_of(day.date, 0, "UTC")
    if offset_at(midnight - DAY_S, zone) == offset_at(midnight + 2 * DAY_S, zone):
        return minutes  # no clock change near that day; looking up each minute of years would be slow
    return [minute for minute in minutes if instants_of(day.date, minute, zone)]


RULES = (
    Rule("S610", "fields", some_hour_has_demand),
    Rule("S616", "fields", profile_entries_divide_hours),
    Rule("S504", "resolved", mean_request_fits_limit),
    Rule("S507", "fields", history_excludes_profile),
    Rule("S624", "resolved", history_is_complete),
)

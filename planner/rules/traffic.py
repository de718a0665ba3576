"""The rules of `traffic`."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from planner.facts.day import DAY_MINUTES
from planner.facts.model import Model
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import Fix, nearest
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.traffic import HOURS


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


RULES = (
    Rule("S610", "fields", some_hour_has_demand),
    Rule("S616", "fields", profile_entries_divide_hours),
    Rule("S504", "resolved", mean_request_fits_limit),
)

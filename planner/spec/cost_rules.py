"""The rules about `traffic` and `cost`; `layout_rules.py` asks them with the others."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from planner.facts.day import DAY_MINUTES
from planner.facts.gpu_names import instead_of_gpu
from planner.facts.model import Model
from planner.facts.terms import PHASES
from planner.problems.fix import Fix, for_example, nearest
from planner.spec.other_days import wrong_days
from planner.spec.rule import Broken, Partial, Rule, declare_in
from planner.spec.times import at_different_times
from planner.spec.traffic import HOURS

__all__ = ["RULES"]

RULES: list[Rule] = []
_reads = declare_in(RULES)

ONE_RATE = "only one of them can apply"
TOLERANCE = 1e-6  # of shares that were written with so many digits


@_reads("traffic.profile")
def some_hour_has_demand(profile: Sequence[float] | None) -> Broken | None:
    """A day's tokens come at some hour."""
    if profile is None or any(profile):
        return None
    fix = "leave it out to spread tokens evenly over the day"
    return Broken("S610 must be above 0 in some hour", "the day's tokens must arrive at some hour", fix)


@_reads("traffic.given", "traffic.profile?", "traffic.other_days?")
def entries_divide_hours(
    _: frozenset[str], profile: Sequence[float] | None, others: Sequence[Mapping[str, Any]] | None
) -> Iterator[Broken]:
    """Each has a whole number of minutes, and no entry is of two hours."""
    counts = ", ".join(str(HOURS * parts) for parts in range(1, 61) if 60 % parts == 0)
    places = {f"traffic.other_days.{index}.profile": each.get("profile") for index, each in enumerate(others or ())}
    for place, each in {"traffic.profile": profile, **places}.items():
        if each is not None and not DAY_MINUTES % len(each) == 0 == len(each) % HOURS:
            rule = f"S616 must have the same number of entries for each hour, it has {len(each)} for 24 hours"
            fix = "write one entry for each hour, or for each equal part of an hour"
            yield Broken(rule, f"possible numbers are {counts}", fix, place, each)


@_reads("traffic.other_days")
def other_days_are_of_the_calendar(others: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """Each is named once."""
    yield from wrong_days("traffic.other_days", others)


@_reads("traffic.other_days", "traffic.given")
def other_days_are_unlike_a_profile(others: Sequence[Mapping[str, Any]], given: frozenset[str]) -> Broken | None:
    """What they have is relative to it."""
    if not others or given & {"profile", "history"}:
        return None
    rule, reason = (
        "S622 must come with profile or history",
        "the demand of other days is relative to that of a usual day",
    )
    return Broken(rule, reason, "write traffic.profile: the demand of each of the 24 hours of a usual day")


@_reads("traffic.output_lengths.p99", "traffic.output_lengths.median")
def most_answers_are_longer_than_half_of_them(p99: int, median: int) -> Broken | None:
    """A percentile is at least the median."""
    if p99 >= median:
        return None
    return Broken(f"S621 must be at least the median ({median})", "half of the answers are that long", nearest(median))


@_reads(
    *("traffic.requests", "traffic.input_tokens", "traffic.output_tokens", "model.shapes?", "spec.sections"),
    *(f"{phase}.{key}?" for phase in PHASES for key in ("max_request_tokens", "given")),
)
def requests_are_as_long_as_one_may_be(
    requests: float | None,
    prompts: float,
    outputs: float,
    model: Model | None,
    sections: frozenset[str],
    *of_phases: Any,
) -> Broken | None:
    """A mean request has a token of each kind at least, and no more than the longest. A default limit is raised."""
    limits = dict(zip(PHASES, zip(of_phases[::2], of_phases[1::2], strict=True), strict=True))
    longest = min((limit for limit, _ in limits.values() if limit), default=None)
    if requests is None or longest is None:
        return None
    if requests > (most := int(min(prompts, outputs))):
        reason = "every request has a token of prompt and one of output"
        return Broken(f"S623 must be at most {most:,}, the smaller number of tokens", reason, nearest(most))
    mean, least = ceil((prompts + outputs) / requests), ceil((prompts + outputs) / longest)
    if mean <= longest:
        return None
    fix = nearest(least)
    is_written = any("max_request_tokens" in (given or ()) for _, given in limits.values())
    if not is_written and (model is None or mean <= model.max_position_embeddings):
        raised = {f"{phase}.max_request_tokens": mean for phase in PHASES if phase in sections}
        fix = Fix(f"write {' and '.join(f'{path}: {value}' for path, value in raised.items())}", (raised,))
    reason = f"a request has {mean:,} tokens on average, and none is longer"
    return Broken(f"S623 must be at least {least:,} with max_request_tokens {longest:,}", reason, fix)


@_reads("traffic.history", "traffic.given")
def past_days_stand_for_a_profile(history: str | None, given: frozenset[str]) -> Broken | None:
    """Two profiles could differ."""
    if history is None or "profile" not in given:
        return None
    either = Fix("remove history or profile", ({"traffic.history": None}, {"traffic.profile": None}))
    return Broken("S620 must not be combined with profile", "the profile is forecast from these days", either)


@_reads("cost.usd_per_gpu_hour", "cost.given", "spec.sections")
def what_is_sold_is_counted(_: float, given: frozenset[str], sections: frozenset[str]) -> Broken | None:
    """Income is prices times tokens."""
    if "prices" not in given or "traffic" in sections:
        return None
    fix = for_example("traffic: {input_tokens: 608e9, output_tokens: 168e9, cache_hit_rate: 0.563}")
    return Broken("S611 must come with traffic", "income is the price times the tokens of a day", fix, "cost.prices")


@_reads("cost.prices")
def shares_make_a_whole(prices: Sequence[Mapping[str, Any]] | None) -> Broken | None:
    """Each token of the traffic is asked of one model."""
    if prices is None or any(isinstance(each, Partial) for each in prices):
        return None
    shares = [float(each.get("share", 1.0)) for each in prices]
    total = sum(shares)
    if abs(total - 1) <= TOLERANCE:
        return None
    rule = f"S612 must have shares that add up to 1, they add up to {total:g}"
    return Broken(rule, "each token of the traffic goes to exactly one model", "write shares of one whole")


@_reads("cost.prices.share")
def one_price_list_has_all_traffic(share: float) -> Broken | None:
    """A share is of several."""
    if abs(share - 1) <= TOLERANCE:
        return None
    rule = "S612 must be 1 when only one model has prices"
    return Broken(rule, "paid_share is the field for tokens that nobody pays for", nearest(1))


@_reads("cost.supplies")
def own_nodes_are_counted(supplies: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """They are paid all day, so that their number is a part of the bill."""
    for index, each in enumerate(supplies):
        if each.get("kind") == "own" and each.get("nodes") is None and not isinstance(each, Partial):
            place = f"cost.supplies.{index}.nodes"
            yield Broken(
                "S613 is required for own nodes",
                "own nodes cost money all day, used or not",
                for_example("nodes: 128"),
                place,
            )


@_reads("cost.supplies", "cluster.gpu?", "cluster.gpu.name?", "prefill.gpu?", "decode.gpu?", "mixed.gpu?")
def supplies_have_gpus_of_the_phases(supplies: Sequence[Mapping[str, Any]], *gpus: str | None) -> Iterator[Broken]:
    """Others would never be used."""
    used = list(dict.fromkeys(filter(None, gpus)))
    for index, each in enumerate(supplies):
        gpu = each.get("gpu")
        if used and gpu is not None and gpu not in used:
            rule = f"S614 must be what a phase runs on ({', '.join(used)})"
            place = f"cost.supplies.{index}.gpu"
            yield Broken(rule, "otherwise no unit could use these nodes", instead_of_gpu(gpu, used), place, gpu)


@_reads("cost.hours")
def rates_startat_hours(hours: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """Each holds until the next one's time."""
    yield from at_different_times("S615", "cost.hours", hours, ONE_RATE)


@_reads("cost.prices.hours")
def discounts_startat_hours(hours: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """The same of one model's prices."""
    yield from at_different_times("S615", "cost.prices.hours", hours, ONE_RATE)


@_reads("cost.supplies")
def rates_of_supplies_startat_hours(supplies: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """The same of each supply."""
    for index, each in enumerate(supplies):
        yield from at_different_times("S615", f"cost.supplies.{index}.hours", each.get("hours", ()), ONE_RATE)


@_reads("cost.prices")
def discounts_of_models_startat_hours(prices: Sequence[Mapping[str, Any]] | None) -> Iterator[Broken]:
    """The same of each model's prices."""
    for index, each in enumerate(prices or ()):
        yield from at_different_times("S615", f"cost.prices.{index}.hours", each.get("hours", ()), ONE_RATE)

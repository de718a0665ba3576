"""The rules about what has no effect as the spec stands; `layout_rules.py` asks them with the others.

Who writes a field wants something of it. Where nothing reads it, the plan is another than the one that was meant, so it
is an error, and the same one for all fields: S560, with what is missing, why, and `remove it` where that is certain.

Whether something is `auto` is asked of the file: by now the planner may have decided it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.facts.terms import PHASES
from planner.problems.fix import Fix, applied, nearest, removal
from planner.spec.declared import field_at
from planner.spec.rule import Broken, Rule, declare_in, without_effect

if TYPE_CHECKING:
    from planner.facts.forecast import Forecast

__all__ = ["RULES", "without_spent"]

Entries = Sequence[Mapping[str, Any]]
Keys = frozenset[str]

RULES: list[Rule] = []
_reads = declare_in(RULES)

OF_AUTO = {  # what the planner may decide -> what it heeds for that, and nothing does later
    "schedule.windows": (
        *("schedule.headroom", "schedule.min_stay", "schedule.max_starts", "schedule.max_stops"),
        *(f"schedule.min_units.{phase}" for phase in PHASES),
        "traffic.capacity",
    ),
    "schedule.drain": ("schedule.answered", "traffic.output_lengths"),
}
WINDOWS_ARE_WRITTEN = "the planner leaves windows that are written as they are"
EACH_HOLDS = "each entry of hours holds until the next one's time"
ONLY_A_DRAIN = "nothing but a drain that is auto follows from it"


def without_spent(data: Mapping[str, Any], autos: Keys) -> dict[str, Any]:
    """Return the data of a spec whose `autos` are decided, with defaults for what was heeded for them alone."""
    spent = [field for decided, fields in OF_AUTO.items() if autos & {"schedule", decided} for field in fields]
    there = [field for field in spent if (data.get(field.split(".")[0]) or {}).get(field.split(".")[1]) is not None]
    return applied(data, {field: field_at(field).default for field in there})


# What is decided by auto alone


def _of_auto(field: str, decided: str, value: Any, _: Any, autos: Keys) -> Broken | None:
    """Find a value that only what is `decided` by the planner would follow; what is left to it is not there yet."""
    if value == field_at(field).default or autos & {"schedule", decided}:
        return None
    reason = f"the planner leaves {decided} as it is written"
    fix = removal(words=f"remove it, or write {decided}: auto")
    return without_effect(f"without {decided}: auto", reason, field, value, fix)


RULES.extend(
    Rule(partial(_of_auto, field, decided), (field, decided, "spec.autos"))
    for decided, fields in OF_AUTO.items()
    for field in fields
    if field.startswith("schedule.")  # a spec may have traffic without a schedule
)


@_reads("traffic.given", "spec.sections", "spec.autos", "schedule.drain?")
def lengths_are_of_a_drain(given: Keys, sections: Keys, autos: Keys, drain: Any) -> Broken | None:
    """The same of the lengths of answers."""
    if "output_lengths" not in given or "schedule.drain" in autos or ("schedule" in sections and drain is None):
        return None
    fix = removal("traffic.output_lengths", words="remove it, or write schedule.drain: auto")
    return without_effect("without schedule.drain: auto", ONLY_A_DRAIN, "traffic.output_lengths", fix=fix)


@_reads("traffic.capacity", "spec.sections", "spec.autos", "schedule.windows?")
def capacity_counts_units_of_windows(
    capacity: float | None, sections: Keys, autos: Keys, windows: Entries | None
) -> Broken | None:
    """Units are counted from it for each window that is left to the planner."""
    is_written = "schedule" not in sections or (windows is not None and not autos & {"schedule", "schedule.windows"})
    if capacity is None or not is_written:
        return None
    return without_effect("without schedule.windows: auto", WINDOWS_ARE_WRITTEN, "traffic.capacity", capacity)


# What is of something else


@_reads("traffic.quantile", "traffic.given", "traffic.forecast?")
def quantiles_are_of_past_days(quantile: float, given: Keys, forecast: "Forecast | None") -> Broken | None:
    """Nobody can tell from one day how days differ."""
    is_one_of_many = "history" in given and (forecast is None or forecast.num_days > 1)
    if is_one_of_many or quantile == field_at("traffic.quantile").default:
        return None
    where = "with the one day of traffic.history" if forecast else "without traffic.history"
    return without_effect(where, "it is a quantile of how past days differ", "traffic.quantile", quantile)


@_reads("kubernetes.controller.kueue.cluster_queue", "kubernetes.controller.lend_nodes")
def quotas_are_of_nodes_that_are_lent(_: str, lends: bool) -> Broken | None:
    """Nodes that are never free have no quota."""
    if lends:
        return None
    path, other = "kubernetes.controller.kueue", "kubernetes.controller.lend_nodes"
    fix = Fix(f"remove it, or write {other}: true", ({path: None}, {other: True}))
    return without_effect("without lend_nodes: true", "no node is ever free for Kueue's jobs then", path, fix=fix)


@_reads("spec.sections", "operating_point.given?", *(f"schedule.min_units.{phase}?" for phase in PHASES))
def phases_are_there(sections: Keys, points: Keys | None, *floors: int | None) -> Iterator[Broken]:
    """An operating point or a floor of a phase that the spec does not have."""
    reason = "there is no such phase"
    for phase, floor in zip(PHASES, floors, strict=True):
        if phase not in sections:
            if phase in (points or ()):
                yield without_effect(f"without {phase}", reason, f"operating_point.{phase}")
            if floor is not None:
                yield without_effect(f"without {phase}", reason, f"schedule.min_units.{phase}", floor)


@_reads("operating_point.{phase}.acceptance_rate", "{phase}.draft_tokens", "{phase}.name")
def rates_are_of_drafts(acceptance_rate: float | None, draft_tokens: int, phase: str) -> Broken | None:
    """A rate of nothing predicts nothing."""
    if acceptance_rate is None or draft_tokens:
        return None
    path = f"operating_point.{phase}.acceptance_rate"
    return without_effect(f"without {phase}.draft_tokens", "nothing is drafted then", path, acceptance_rate)


@_reads("operating_point.prefill.cache_hit_rate", "traffic.cache_hit_rate")
def hits_are_the_traffics(hit_rate: float | None, of_day: float) -> Broken | None:
    """A speed and the day that it serves are of one load."""
    if hit_rate is None or hit_rate == of_day:
        return None
    where, path = f"beside traffic.cache_hit_rate ({of_day:g})", "operating_point.prefill.cache_hit_rate"
    return without_effect(where, "the operating point has the hits of the traffic", path, hit_rate)


@_reads(
    *("operating_point.mixed.output_tokens", "operating_point.mixed.prompt_tokens"),
    *("traffic.output_tokens", "traffic.input_tokens"),
)
def answers_are_as_long_as_the_traffics(
    outputs: int | None, prompts: int, outputs_of_day: float, prompts_of_day: float
) -> Broken | None:
    """The same of the output that a prompt has."""
    of_day = prompts * outputs_of_day / prompts_of_day
    if outputs is None or abs(outputs - of_day) < 1:
        return None
    where, path = "beside traffic.output_tokens", "operating_point.mixed.output_tokens"
    reason = f"the operating point has as much output for a prompt as the traffic, {of_day:,.4g} tokens"
    return without_effect(where, reason, path, outputs)


# Costs


@_reads("cost.supplies", "cluster.nodes", "spec.autos")
def supplies_are_of_nodes_that_there_are(supplies: Entries, nodes: int | Entries, autos: Keys) -> Iterator[Broken]:
    """No unit can use more. Own nodes cost money all the same."""
    most = nodes if isinstance(nodes, int) else len(nodes)
    for index, each in enumerate(supplies):
        number = each.get("nodes") or 0
        if number > most and each.get("kind") != "own" and "cluster.nodes" not in autos:
            path, reason = f"cost.supplies.{index}.nodes", "no unit can use the others"
            yield without_effect(f"beyond the cluster's {most} nodes", reason, path, number, _there(path, most))


@_reads("cost.usd_per_gpu_hour", "cost.hours")
def some_hour_has_the_rate(rate: float, hours: Entries) -> Iterator[Broken]:
    """Rates of hours hold all day."""
    yield from _never_paid("cost", rate, hours)


@_reads("cost.supplies")
def some_hour_has_the_rate_of_a_supply(supplies: Entries) -> Iterator[Broken]:
    """The same of each supply."""
    for index, each in enumerate(supplies):
        yield from _never_paid(f"cost.supplies.{index}", each.get("usd_per_gpu_hour"), each.get("hours") or ())


@_reads("cost.prices.hours")
def discounts_end(hours: Entries) -> Iterator[Broken]:
    """A single one holds all day, whatever its time."""
    yield from _without_end("cost.prices", hours)


@_reads("cost.prices")
def discounts_of_models_end(prices: Entries | None) -> Iterator[Broken]:
    """The same of each model's prices."""
    for index, each in enumerate(prices or ()):
        yield from _without_end(f"cost.prices.{index}", each.get("hours") or ())


def _there(path: str, most: int) -> Fix:
    return Fix(str(nearest(most)), ({path: most},))


def _never_paid(place: str, rate: float | None, hours: Entries) -> Iterator[Broken]:
    rates = [each.get("usd_per_gpu_hour") for each in hours]
    if rates and rate is not None and None not in rates and rate not in rates:
        path = f"{place}.usd_per_gpu_hour"
        fix = f"add the time from which {rate:g} is paid to {place}.hours, or write one of its rates here"
        yield without_effect(f"beside {place}.hours, which has other rates for all day", EACH_HOLDS, path, rate, fix)


def _without_end(place: str, hours: Entries) -> Iterator[Broken]:
    if len(hours) == 1 and (at := hours[0].get("at")) is not None:
        path, fix = f"{place}.hours.0.at", "add the time from which another factor holds, such as 1"
        yield without_effect("as the only time of hours", EACH_HOLDS, path, at, fix)

"""The rules of `cost`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.gpu_names import instead_of_gpu
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import Fix, for_example, nearest
from planner.rules.days import at_different_times
from planner.rules.rule import Rule, without_effect
from planner.rules.written import Written

__all__ = ["RULES"]

Entries = Sequence[Mapping[str, Any]]

RATES = ("cost.hours", "cost.prices.hours", "cost.supplies.*.hours", "cost.prices.*.hours")
TOLERANCE = 1e-6  # of shares that were written with so many digits
EACH_HOLDS = "each entry of hours holds until the next one's time"


def what_is_sold_is_counted(c: Written) -> Iterator[Finding]:
    """Income is prices times tokens."""
    c.require("cost.usd_per_gpu_hour")
    if not c.gives("cost.prices") or "traffic" in c.sections:
        return
    fix = for_example("traffic: {input_tokens: 608e9, output_tokens: 168e9, cache_hit_rate: 0.563}")
    reason = "income is the price times the tokens of a day"
    yield without_effect("without traffic", reason, "cost.prices", fix=fix)


def shares_make_a_whole(c: Written) -> Iterator[Finding]:
    """Each token of the traffic is asked of one model."""
    prices: Entries | None = c["cost.prices"]
    shares = [c[f"cost.prices.{index}.share"] for index in range(len(prices or ()))]
    total = sum(1.0 if share is None else float(share) for share in shares)
    if prices is not None and abs(total - 1) > TOLERANCE:
        rule = f"S612 must have shares that add up to 1, they add up to {total:g}"
        reason = "each token of the traffic goes to exactly one model"
        yield Finding("cost.prices", prices, rule, reason, "write shares of one whole")


def one_price_list_has_all_traffic(c: Written) -> Iterator[Finding]:
    """A share is of several."""
    share: float = c["cost.prices.share"]
    if abs(share - 1) > TOLERANCE:
        rule = "S612 must be 1 when only one model has prices"
        reason = "paid_share is the field for tokens that nobody pays for"
        yield Finding("cost.prices.share", share, rule, reason, nearest(1))


def own_nodes_are_counted(c: Written, supply: str) -> Iterator[Finding]:
    """They are paid all day, so that their number is a part of the bill."""
    if c[f"{supply}.kind"] == "own" and c[f"{supply}.nodes"] is None:
        reason = "own nodes cost money all day, used or not"
        yield Finding(f"{supply}.nodes", None, "S202 is required for own nodes", reason, for_example("nodes: 128"))


def supplies_have_gpus_of_the_phases(c: Written, supply: str) -> Iterator[Finding]:
    """Others would never be used."""
    gpu: str | None = c[f"{supply}.gpu"]
    places = ("cluster.gpu", "cluster.gpu.name", *(f"{phase}.gpu" for phase in PHASES))
    used: list[str] = list(dict.fromkeys(filter(None, map(c.get, places))))
    if used and gpu is not None and gpu not in used:
        rule = f"S304 must be what a phase runs on ({', '.join(used)})"
        reason = "otherwise no unit could use these nodes"
        yield Finding(f"{supply}.gpu", gpu, rule, reason, instead_of_gpu(gpu, used))


def rates_begin_at_different_times(c: Written, hours: str) -> Iterator[Finding]:
    """Each holds until the next one's time."""
    yield from at_different_times(hours, c[hours] or (), "only one of them can apply")


def supplies_are_of_nodes_that_there_are(c: Written, supply: str) -> Iterator[Finding]:
    """No unit can use more. Own nodes cost money all the same."""
    nodes: int | Entries = c["cluster.nodes"]
    number: int = c[f"{supply}.nodes"] or 0
    most = nodes if isinstance(nodes, int) else len(nodes)
    if number > most and c[f"{supply}.kind"] != "own" and "cluster.nodes" not in c.autos:
        path = f"{supply}.nodes"
        fix = Fix(str(nearest(most)), ({path: most},))
        yield without_effect(f"beyond the cluster's {most} nodes", "no unit can use the others", path, number, fix)


def some_hour_has_the_rate(c: Written, place: str) -> Iterator[Finding]:
    """Rates of hours hold all day."""
    path = f"{place}.usd_per_gpu_hour"
    rate: float | None = c[path]
    rates = [each.get("usd_per_gpu_hour") for each in c[f"{place}.hours"] or ()]
    if rates and rate is not None and None not in rates and rate not in rates:
        where = f"beside {place}.hours, which has other rates for all day"
        fix = f"add the time from which {rate:g} is paid to {place}.hours, or write one of its rates here"
        yield without_effect(where, EACH_HOLDS, path, rate, fix)


def discounts_end(c: Written, place: str) -> Iterator[Finding]:
    """A single one holds all day, whatever its time."""
    hours: Entries = c[f"{place}.hours"] or ()
    if len(hours) == 1 and (at := hours[0].get("at")) is not None:
        fix = "add the time from which another factor holds, such as 1"
        yield without_effect("as the only time of hours", EACH_HOLDS, f"{place}.hours.0.at", at, fix)


RULES = (
    Rule("S560", "fields", what_is_sold_is_counted),
    Rule("S612", "fields", shares_make_a_whole),
    Rule("S612", "fields", one_price_list_has_all_traffic),
    Rule("S202", "fields", own_nodes_are_counted, ["cost.supplies.*"]),
    Rule("S304", "fields", supplies_have_gpus_of_the_phases, ["cost.supplies.*"]),
    Rule("S408", "fields", rates_begin_at_different_times, RATES),
    Rule("S560", "fields", supplies_are_of_nodes_that_there_are, ["cost.supplies.*"]),
    Rule("S560", "fields", some_hour_has_the_rate, ["cost", "cost.supplies.*"]),
    Rule("S560", "fields", discounts_end, ["cost.prices", "cost.prices.*"]),
)

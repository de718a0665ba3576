"""The rules of `cost`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.gpu_names import suggest_gpu
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import Fix, for_example, nearest
from planner.rules.days import find_duplicate_times
from planner.rules.rule import Rule, without_effect
from planner.rules.written import Written

__all__ = ["RULES"]

Entries = Sequence[Mapping[str, Any]]

HOURS = "cost.prices.hours"
EACH_HOLDS = "each entry of hours holds until the next one's time"


def prices_need_traffic(c: Written) -> Iterator[Finding]:
    """Reject prices without traffic: income is the price times the tokens of a day."""
    c.require("cost.usd_per_gpu_hour")
    if not c.is_given("cost.prices") or "traffic" in c.sections:
        return
    fix = for_example("traffic: {input_tokens: 608e9, output_tokens: 168e9, cache_hit_rate: 0.563}")
    reason = "income is the price times the tokens of a day"
    yield without_effect("without traffic", reason, "cost.prices", fix=fix)


def own_supplies_need_nodes(c: Written, supply: str) -> Iterator[Finding]:
    """Reject own nodes without a number: they are paid all day, used or not."""
    if c[f"{supply}.kind"] == "own" and c[f"{supply}.nodes"] is None:
        reason = "own nodes cost money all day, used or not"
        yield Finding(f"{supply}.nodes", None, "S202 is required for own nodes", reason, for_example("nodes: 128"))


def supply_gpus_are_used(c: Written, supply: str) -> Iterator[Finding]:
    """Reject a supply of GPUs that no phase runs on: it would never be used."""
    gpu: str | None = c[f"{supply}.gpu"]
    places = ("cluster.gpu", "cluster.gpu.name", *(f"{phase}.gpu" for phase in PHASES))
    used: list[str] = list(dict.fromkeys(filter(None, map(c.get, places))))
    if used and gpu is not None and gpu not in used:
        rule = f"S304 must be what a phase runs on ({', '.join(used)})"
        reason = "otherwise no unit could use these nodes"
        yield Finding(f"{supply}.gpu", gpu, rule, reason, suggest_gpu(gpu, used))


def price_hours_are_unique(c: Written) -> Iterator[Finding]:
    """Reject price factors that begin at the same time."""
    yield from find_duplicate_times(HOURS, c[HOURS], "only one of them can apply")


def supplies_fit_cluster(c: Written, supply: str) -> Iterator[Finding]:
    """Reject a supply of more nodes than the cluster has, except own nodes, which cost money anyway."""
    nodes: int | Entries = c["cluster.nodes"]
    number: int = c[f"{supply}.nodes"] or 0
    most = nodes if isinstance(nodes, int) else len(nodes)
    if number > most and c[f"{supply}.kind"] != "own" and "cluster.nodes" not in c.autos:
        path = f"{supply}.nodes"
        fix = Fix(str(nearest(most)), ({path: most},))
        yield without_effect(f"beyond the cluster's {most} nodes", "no unit can use the others", path, number, fix)


def single_price_hour_has_no_time(c: Written) -> Iterator[Finding]:
    """Reject the time of a single price factor: it applies all day."""
    hours: Entries = c[HOURS]
    if len(hours) == 1 and (at := hours[0].get("at")) is not None:
        fix = "add the time from which another factor holds, such as 1"
        yield without_effect("as the only time of hours", EACH_HOLDS, f"{HOURS}.0.at", at, fix)


RULES = (
    Rule("S560", "fields", prices_need_traffic),
    Rule("S202", "fields", own_supplies_need_nodes, ["cost.supplies.*"]),
    Rule("S304", "fields", supply_gpus_are_used, ["cost.supplies.*"]),
    Rule("S408", "fields", price_hours_are_unique),
    Rule("S560", "fields", supplies_fit_cluster, ["cost.supplies.*"]),
    Rule("S560", "fields", single_price_hour_has_no_time),
)

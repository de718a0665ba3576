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

HOURS = "cost.prices.hours"
EACH_HOLDS = "each entry of hours holds until the next one's time"


def what_is_sold_is_counted(c: Written) -> Iterator[Finding]:
    """Income is prices times tokens."""
    c.require("cost.usd_per_gpu_hour")
    if not c.gives("cost.prices") or "traffic" in c.sections:
        return
    fix = for_example("traffic: {input_tokens: 608e9, output_tokens: 168e9, cache_hit_rate: 0.563}")
    reason = "income is the price times the tokens of a day"
    yield without_effect("without traffic", reason, "cost.prices", fix=fix)


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


def discounts_begin_at_different_times(c: Written) -> Iterator[Finding]:
    """Each holds until the next one's time."""
    yield from at_different_times(HOURS, c[HOURS], "only one of them can apply")


def supplies_are_of_nodes_that_there_are(c: Written, supply: str) -> Iterator[Finding]:
    """No unit can use more. Own nodes cost money all the same."""
    nodes: int | Entries = c["cluster.nodes"]
    number: int = c[f"{supply}.nodes"] or 0
    most = nodes if isinstance(nodes, int) else len(nodes)
    if number > most and c[f"{supply}.kind"] != "own" and "cluster.nodes" not in c.autos:
        path = f"{supply}.nodes"
        fix = Fix(str(nearest(most)), ({path: most},))
        yield without_effect(f"beyond the cluster's {most} nodes", "no unit can use the others", path, number, fix)


def discounts_end(c: Written) -> Iterator[Finding]:
    """A single one holds all day, whatever its time."""
    hours: Entries = c[HOURS]
    if len(hours) == 1 and (at := hours[0].get("at")) is not None:
        fix = "add the time from which another factor holds, such as 1"
        yield without_effect("as the only time of hours", EACH_HOLDS, f"{HOURS}.0.at", at, fix)


RULES = (
    Rule("S560", "fields", what_is_sold_is_counted),
    Rule("S202", "fields", own_nodes_are_counted, ["cost.supplies.*"]),
    Rule("S304", "fields", supplies_have_gpus_of_the_phases, ["cost.supplies.*"]),
    Rule("S408", "fields", discounts_begin_at_different_times),
    Rule("S560", "fields", supplies_are_of_nodes_that_there_are, ["cost.supplies.*"]),
    Rule("S560", "fields", discounts_end),
)

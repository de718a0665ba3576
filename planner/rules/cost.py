"""The rules of `cost`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.catalog import suggest_gpu
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import Fix, for_example, nearest
from planner.rules.rule import Rule, report_no_effect
from planner.rules.valid_values import ValidValues

Entries = Sequence[Mapping[str, Any]]

HOURS = "cost.prices.hours"


def own_supplies_need_nodes(c: ValidValues, supply: str) -> Iterator[Finding]:
    """Require the number of nodes in a supply of own nodes: they are paid all day, used or not."""
    if c[f"{supply}.kind"] == "own" and c[f"{supply}.nodes"] is None:
        reason = "own nodes cost money all day, used or not"
        yield Finding(f"{supply}.nodes", None, "S202 is required for own nodes", reason, for_example("nodes: 128"))


def supply_gpus_are_used(c: ValidValues, supply: str) -> Iterator[Finding]:
    """Reject a supply whose GPU model no phase runs on: its nodes would never be used."""
    gpu: str | None = c[f"{supply}.gpu"]
    places = ("cluster.gpu", "cluster.gpu.name", *(f"{phase}.gpu" for phase in PHASES))
    used: list[str] = list(dict.fromkeys(filter(None, map(c.get, places))))
    if used and gpu is not None and gpu not in used:
        rule = f"S304 must be what a phase runs on ({', '.join(used)})"
        reason = "otherwise no unit could use these nodes"
        yield Finding(f"{supply}.gpu", gpu, rule, reason, suggest_gpu(gpu, used))


def supplies_fit_cluster(c: ValidValues, supply: str) -> Iterator[Finding]:
    """Reject a supply of more nodes than the cluster has, except own nodes: they cost money even if unused."""
    nodes: int | Entries = c["cluster.nodes"]
    number: int = c[f"{supply}.nodes"] or 0
    most = nodes if isinstance(nodes, int) else len(nodes)
    if number > most and c[f"{supply}.kind"] != "own" and "cluster.nodes" not in c.autos:
        path = f"{supply}.nodes"
        fix = Fix(str(nearest(most)), ({path: most},))
        yield report_no_effect(f"beyond the cluster's {most} nodes", "no unit can use the others", path, number, fix)


RULES = (
    Rule("S202", "fields", own_supplies_need_nodes, ["cost.supplies.*"]),
    Rule("S304", "fields", supply_gpus_are_used, ["cost.supplies.*"]),
    Rule("S560", "fields", supplies_fit_cluster, ["cost.supplies.*"]),
)

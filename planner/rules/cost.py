"""The rules of `cost`."""

from collections.abc import Iterator

from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues


def priced_gpus_are_used(c: ValidValues) -> Iterator[Finding]:
    """Reject a price of a GPU model that no phase runs on."""
    prices: dict[str, float] = c["cost.gpus"]
    places = ("cluster.gpu", "cluster.gpu.name", *(f"{phase}.gpu" for phase in PHASES))
    used: list[str] = list(dict.fromkeys(filter(None, map(c.get, places))))
    for gpu in prices if used else ():
        if gpu not in used:
            rule = f"S304 must be what a phase runs on ({', '.join(used)})"
            reason = "otherwise nothing has this price"
            yield Finding(f"cost.gpus.{gpu}", prices[gpu], rule, reason, f"write {' or '.join(used)}")


RULES = (Rule("S304", "fields", priced_gpus_are_used),)

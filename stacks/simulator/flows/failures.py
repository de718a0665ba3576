"""`--fail NODE@HH:MM`: the nodes that fail on a simulated day, and the units that stop with them.

A failed unit moves to a spare of `cluster.spares` and serves again after a warm-up. Spares are taken in
their order, by the units that fail first. Where none is left, a unit is out until the day ends: a simulation repairs no
nodes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from planner.compiler import Compiled
from planner.estimate.failures import recovery_s
from planner.facts.day import MINUTE_S, hh_mm, minute_of
from planner.layout.nodes import spares_with
from planner.layout.unit import Unit
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import Fix, closest_choice, for_example, nearest
from stacks.simulator.flows.fleet import Outage

__all__ = ["Failure", "find_outages", "read_failures"]

FORM = re.compile(r"(?P<node>.+)@(?P<at>(?:[01]\d|2[0-3]):[0-5]\d)")


@dataclass(frozen=True)
class Failure:
    """A node that fails at a minute of the day."""

    node: str
    minute: int

    def __str__(self) -> str:
        return f"{self.node}@{hh_mm(self.minute)}"


def read_failures(words: Sequence[str]) -> tuple[Failure, ...]:
    """Return the failures that the `--fail` options name, by time. Raises CallError with every mistake."""
    found, wrong = [], []
    for word in words:
        if matched := FORM.fullmatch(word):
            found.append(Failure(matched["node"], minute_of(matched["at"])))
        else:
            rule, reason = "R403 must be NODE@HH:MM", "the simulation needs the node that fails, and the time of day"
            wrong.append(Finding("--fail", word, rule, reason, for_example("node-7@12:40")))
    if wrong:
        raise CallError([each.at("tidemill simulate") for each in wrong])
    return tuple(sorted(found, key=lambda each: (each.minute, each.node)))


def find_outages(plan: Compiled, failures: Sequence[Failure]) -> tuple[Outage, ...]:
    """Return an outage for each unit that `failures` stop. Raises CallError for nodes that the plan does not have."""
    spares = list(plan.spec.cluster.spares)
    hosts = {node: [each for each in plan.units if node in each.nodes] for unit in plan.units for node in unit.nodes}
    _require_nodes(failures, [*hosts, *spares])
    minutes = ceil(recovery_s(plan.spec) / MINUTE_S)
    found: list[Outage] = []
    for failure in sorted(failures, key=lambda each: (each.minute, each.node in hosts)):  # spares first
        if failure.node in spares:
            spares.remove(failure.node)
        for unit in hosts.get(failure.node, ()):
            if any(each.unit == unit.name and each.covers(failure.minute) for each in found):
                continue
            spare = _take_spare(spares, plan, unit)
            until = None if spare is None else failure.minute + minutes
            found.append(Outage(unit.name, failure.node, failure.minute, until, spare))
    return tuple(found)


def _take_spare(spares: list[str], plan: Compiled, unit: Unit) -> str | None:
    """Remove the first of `spares` that can replace a node of `unit`, and return it.

    Return None if no such spare is left.
    """
    fitting = spares_with(plan.spec.cluster, plan.spec.gpu_name(unit.phase), plan.spec.kubernetes.tolerations)
    spare = next((each for each in spares if each in fitting), None)
    if spare is not None:
        spares.remove(spare)
    return spare


def _require_nodes(failures: Sequence[Failure], nodes: Sequence[str]) -> None:
    rule, reason = "R404 must name a node of the plan", "the plan has no such node"
    wrong = [
        Finding("--fail", str(each), rule, reason, _suggest_node(each, nodes))
        for each in failures
        if each.node not in nodes
    ]
    if wrong:
        raise CallError([each.at("tidemill simulate") for each in wrong])


def _suggest_node(failure: Failure, nodes: Sequence[str]) -> Fix:
    """Return a fix that suggests the node with the most similar name, or else any node."""
    alike = closest_choice(failure.node, nodes)
    return (
        for_example(str(replace(failure, node=nodes[0])))
        if alike is None
        else nearest(str(replace(failure, node=alike)))
    )

"""The page's picture of nodes by rack: which unit each belongs to, when the unit is on, and what fails together.

The picture shows one time of the day, which the reader chooses. A script in the page finds nodes and units by name, and
counts what the loss of a node, rack or leaf switch would stop at that time.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.estimate.failures import recovery_s, suggest_spare
from planner.facts import names
from planner.facts.day import MINUTE_S, minute_of, periods
from planner.facts.quantities import first_of
from planner.facts.terms import Phase
from planner.layout.nodes import Node, nodes_of, spares_with
from planner.plan.expected import Demand
from planner.plan.plan import Plan
from planner.plan.sections import PlannedUnit
from planner.report.columns import format_runs
from planner.report.page.figures import Table

LETTERS = {"prefill": "p", "decode": "d", "mixed": "m"}


@dataclass(frozen=True)
class Cell:
    """The square of one node in the picture."""

    index: int
    kind: str  # its colour
    mark: str  # what is written in it: letter and number of the node's unit
    words: str


@dataclass(frozen=True)
class Nodes:
    """The picture of all nodes by rack, and the data from which the page's script answers questions about nodes."""

    racks: Sequence[tuple[str, Sequence[Cell]]]
    legend: Sequence[tuple[str, str]]  # kind, words
    facts: dict[str, Any]
    tables: Sequence[Table]
    has_clock: bool  # whether some units are off at some time
    form = "nodes"


def show_nodes(plan: Plan) -> Nodes:
    """Return the picture of the plan's nodes."""
    nodes = nodes_of(plan.spec.cluster, plan.spec.gpu_names, plan.kubernetes.tolerations)
    unit_of = {node: unit for unit in plan.units for node in unit.nodes}
    racks: dict[str, list[Cell]] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(_cell(plan, node, unit_of.get(node.name)))
    return Nodes(
        racks=list(racks.items()),
        legend=_legend(plan, [cell.kind.split()[0] for cells in racks.values() for cell in cells]),
        facts=_page_data(plan, nodes, unit_of),
        tables=[_units_table(plan), *_racks_tables(plan, nodes, unit_of)],
        has_clock=plan.switches_units,
    )


def _cell(plan: Plan, node: Node, unit: PlannedUnit | None) -> Cell:
    if unit is not None:
        kind = f"{unit.phase} shade{unit.index % 2}"
        return Cell(node.index, kind, _mark(unit), f"{node.name}, {_short(plan, unit)}")
    if node.unusable is None:
        return Cell(node.index, "idle", "", f"{node.name}, idle")
    kind, mark = ("spare", "s") if node.is_spare else ("unusable", "×")
    return Cell(node.index, kind, mark, f"{node.name}, {node.unusable}")


def _legend(plan: Plan, kinds: Collection[str]) -> list[tuple[str, str]]:
    by_turns = "dark and light by turns"
    words = {phase: f"{letter}0, {letter}1, ...: {phase} units, {by_turns}" for phase, letter in LETTERS.items()}
    words |= {"spare": "s: a spare", "idle": "idle: no unit is placed there", "unusable": "×: not usable"}
    shown = [(kind, said) for kind, said in words.items() if kind in kinds]
    shown += [("off", "off at the time chosen")] if plan.switches_units else []
    return [*shown, ("lost", "chosen: lost"), ("mate", "other nodes of the units that stop with it")]


def _page_data(plan: Plan, nodes: Sequence[Node], unit_of: dict[str, PlannedUnit]) -> dict[str, Any]:
    """Return the data of the page's script: nodes, units, the day's states and loads, label, namespace and recovery.

    Units are given by number; -1 is no unit.
    """
    number_of = {unit.name: number for number, unit in enumerate(plan.units)}
    steps = plan.schedule.steps if plan.schedule else ()
    states = sorted((minute_of(step.at), [number_of[name] for name in step.units]) for step in steps)
    return {
        "nodes": [
            {
                "name": node.name,
                "unit": number_of[unit_of[node.name].name] if node.name in unit_of else -1,
                "why": node.unusable or "",
                "spare": node.is_spare,
                "places": {"rack": node.rack, "leaf switch": node.leaf},
            }
            for node in nodes
        ],
        "units": [
            {
                "name": unit.name,
                "short": _short(plan, unit),
                "mark": _mark(unit),
                "phase": unit.phase,
                "leader": unit.nodes[0],
                "nodes": format_runs(unit.nodes),
            }
            for unit in plan.units
        ],
        "states": states or [(0, list(number_of.values()))],
        "loads": {phase: loads for phase, each in (plan.demand or {}).items() if (loads := _loads(each))},
        "label": names.UNIT_LABEL,
        "namespace": plan.kubernetes.namespace,
        "healed": [phase for phase in plan.phases if plan.kubernetes.heals and _spares(plan, phase)],
        "recovery": {phase: _say_recovery(plan, phase) for phase in plan.phases},
    }


def _loads(demand: Demand) -> list[tuple[int, float | None]]:
    """Return (first minute, load) for each stretch of the day with constant demand.

    The load is the demand over the most that the units serve then; None if no unit is on.
    """
    return [
        (minute_of(each.at), each.asked_tokens_per_s / each.most_tokens_per_s if each.most_tokens_per_s else None)
        for each in demand.stretches
    ]


def _say_recovery(plan: Plan, phase: Phase) -> str:
    """Say how, and after how long, a unit of `phase` that lost a node serves again."""
    if spares := _spares(plan, phase):
        return f"On a spare ({first_of(spares)}) it serves again after {ceil(recovery_s(plan.spec) / MINUTE_S)} min."
    hint = suggest_spare(plan.spec, plan.units, phase)
    return f"No node is a spare, so it is out until repair{f'; {hint}' if hint else ''}."


def _spares(plan: Plan, phase: Phase) -> Sequence[str]:
    return spares_with(plan.spec.cluster, plan.spec.gpu_name(phase), plan.kubernetes.tolerations)


def _units_table(plan: Plan) -> Table:
    rows = [(_short(plan, unit), format_runs(unit.nodes), _hours_on(plan, unit)) for unit in plan.units]
    return Table(("unit", "nodes by rank", "on"), rows, "Every unit with its nodes")


def _hours_on(plan: Plan, unit: PlannedUnit) -> str:
    if plan.schedule is None:
        return "all day"
    on = [(minute_of(step.at), step.minutes) for step in plan.schedule.steps if unit.name in step.units]
    return periods(on) or "on other days alone"


def _racks_tables(plan: Plan, nodes: Sequence[Node], unit_of: dict[str, PlannedUnit]) -> Iterator[Table]:
    """Yield a table of the units that stop with each rack, if the spec names racks."""
    racks: dict[str, list[str]] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node.name)
    if racks.keys() != {""}:
        rows = [
            (rack or "none", format_runs(inside), ", ".join(_units_on(plan, inside, unit_of)) or "nothing")
            for rack, inside in racks.items()
        ]
        yield Table(("rack", "nodes", "units that stop with it"), rows, "What fails with each rack")


def _units_on(plan: Plan, nodes: Sequence[str], unit_of: dict[str, PlannedUnit]) -> dict[str, None]:
    return dict.fromkeys(_short(plan, unit_of[node]) for node in nodes if node in unit_of)


def _mark(unit: PlannedUnit) -> str:
    """Return the text in the squares of a unit's nodes, such as `d3` for `decode-3`."""
    return f"{LETTERS[unit.phase]}{unit.index}"


def _short(plan: Plan, unit: PlannedUnit) -> str:
    return names.short_name(unit.name, plan.name)

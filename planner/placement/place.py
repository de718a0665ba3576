"""The pass: units to nodes, by the search that suits the size, near a previous plan where there is one.

`fresh` is where units would go if there were none. A previous placement that is as good stays as it is; otherwise what
is better is taken with as few moves as were found. So the same spec, planned after itself, moves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.cluster.inventory import Node, nodes_of
from planner.facts import names
from planner.layout.layout import PhaseLayout
from planner.layout.unit import Unit
from planner.placement.fill import fill
from planner.placement.greedy import MAX_TRIES, better, greedy
from planner.placement.improve import improved
from planner.placement.nodes import nodes_of_assignment
from planner.placement.quality import Objective, measure
from planner.placement.task import Assignment, Task, Wanted, task_of
from planner.problems.errors import InfeasibleError, Violation
from planner.spec.check import ResolvedSpec
from planner.spec.hours import active_minutes

__all__ = ["Placement", "check_room", "place_units"]

EXACT_SIZE = 80  # units x cells: up to 90 HiGHS took 0.6 s at most, up to 120 1.8 s (2 busy cores, random clusters)


@dataclass(frozen=True)
class Placement:
    """All units on their nodes, how good that is, how it was found, and which nodes could not be used."""

    units: tuple[Unit, ...]
    objectives: tuple[Objective, ...]
    method: str  # exact, greedy or previous
    why: str  # that method
    unusable: Mapping[str, str]  # node -> why


@dataclass(frozen=True)
class _Found:
    """An assignment, what is known of how good it is, and where it is from."""

    assignment: Assignment
    objectives: tuple[Objective, ...]
    method: str
    why: str


def place_units(
    spec: ResolvedSpec, layouts: Sequence[PhaseLayout], previous: Mapping[str, Sequence[str]] | None = None
) -> Placement:
    """All units on disjoint nodes. `previous`: where an earlier plan had them, by unit.

    Raises InfeasibleError when the cluster has too few nodes.
    """
    check_room(spec, layouts)
    nodes = nodes_of(spec.cluster)
    usable = [node for node in nodes if node.unusable is None]
    wanted, before = _wanted(spec, layouts), _of_one_unit_each(previous or {})
    found = _fresh(task_of(wanted, usable, spec.written.schedule, {}))
    task = task_of(wanted, usable, spec.written.schedule, before)
    if task.had_nodes:
        found = _near_previous(task, found)
    on_nodes = nodes_of_assignment(task, found.assignment, before)
    place_of = {node.name: node for node in usable}
    ranks = {layout.phase: layout.ranks_per_node for layout in layouts}
    units = tuple(
        Unit(each.name, each.phase, each.index, own, ranks[each.phase], _why(own, place_of, before.get(each.name, ())))
        for each, own in zip(wanted, on_nodes, strict=True)
    )
    unusable = {node.name: node.unusable for node in nodes if node.unusable}
    return Placement(units, found.objectives, found.method, found.why, unusable)


def check_room(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> None:
    """Raise InfeasibleError when the cluster has too few nodes."""
    cluster = spec.cluster
    needed = sum(layout.num_units * layout.nodes_per_unit for layout in layouts)
    if isinstance(cluster.nodes, int) and needed <= cluster.nodes:
        return
    nodes = nodes_of(cluster)
    if needed > sum(node.unusable is None for node in nodes):
        raise InfeasibleError([spec.problem(_too_few(spec, nodes, needed, layouts))])


def _fresh(task: Task) -> _Found:
    """The best that is found without regard to earlier plans."""
    assignment = greedy(task)
    return _proven(task, assignment, measure(task, assignment))


def _proven(task: Task, assignment: Assignment, objectives: tuple[Objective, ...]) -> _Found:
    """`assignment`, or a better one from the exact search, where that is needed and the task is small enough."""
    if all(objective.is_proven for objective in objectives):
        return _Found(assignment, objectives, "greedy", "every count is at its bound")
    size = f"{len(task.units)} units x {len(task.cells)} places"
    if len(task.units) * len(task.cells) > EXACT_SIZE:
        return _Found(assignment, objectives, "greedy", f"{size} are over {EXACT_SIZE}, too many for the exact search")
    from planner.placement.exact import exact  # HiGHS and numpy, which most plans do without

    assignment, objectives = exact(task, assignment, [objective.bound for objective in objectives])
    return _Found(assignment, objectives, "exact", f"{size} are at most {EXACT_SIZE}")


def _near_previous(task: Task, fresh: _Found) -> _Found:
    """The previous placement if it is as good as `fresh`, else the better ones with few moves."""
    kept = fill(task, _stayed(task))
    objectives = _with_bounds(measure(task, kept), fresh.objectives)
    worst = [objective.value for objective in fresh.objectives]
    if [objective.value for objective in objectives[: len(worst)]] <= worst and objectives[-1].is_proven:
        return _Found(kept, objectives, "previous", "as good as anew, and nothing moves that could stay")
    best, goal = kept, [objective.bound for objective in objectives]
    for start in (kept, fresh.assignment):
        best = better(task, best, improved(task, start, MAX_TRIES // 2, goal)[0])
    return _proven(task, best, _with_bounds(measure(task, best), fresh.objectives))


def _stayed(task: Task) -> Assignment:
    """What units have of their nodes of before."""
    assignment: list[dict[int, int]] = []
    for unit, had in zip(task.units, task.before, strict=True):
        cells: dict[int, int] = {}
        for cell, count in had.items():
            cells[cell] = min(count, unit.num_nodes - sum(cells.values()))
        assignment.append({cell: count for cell, count in cells.items() if count})
    return assignment


def _with_bounds(objectives: tuple[Objective, ...], known: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """`objectives` with bounds that are `known`, as long as they are as good as those of which they are known."""
    result = list(objectives)
    for number, (now, other) in enumerate(zip(objectives, known, strict=False)):
        result[number] = replace(now, bound=max(now.bound, other.bound))
        if now.value > other.value:
            break
    return tuple(result)


def _of_one_unit_each(previous: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """A node that is named twice stays with the first unit: only one can have it."""
    taken: set[str] = set()
    result: dict[str, list[str]] = {}
    for unit, nodes in previous.items():
        result[unit] = [node for node in dict.fromkeys(nodes) if node not in taken]
        taken.update(nodes)
    return result


def _wanted(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> list[Wanted]:
    return [
        Wanted(
            name=names.unit_name(spec.written.name, layout.phase, index),
            phase=layout.phase,
            index=index,
            num_nodes=layout.nodes_per_unit,
            minutes=active_minutes(spec.written.schedule, layout.phase, index),
        )
        for layout in layouts
        for index in range(layout.num_units)
    ]


def _too_few(spec: ResolvedSpec, nodes: Sequence[Node], needed: int, layouts: Sequence[PhaseLayout]) -> Violation:
    parts = " + ".join(f"{layout.phase} {layout.num_units} x {layout.nodes_per_unit}" for layout in layouts)
    reason = "every unit has its nodes to itself"
    if isinstance(spec.cluster.nodes, int):
        rule = f"S701 must be at least {needed} ({parts})"
        return Violation("cluster.nodes", len(nodes), rule, reason, f"nearest: {needed}")
    unusable = [node for node in nodes if node.unusable]
    kept_away = "".join(f", {node.name} {node.unusable}" for node in unusable[:3])
    usable = len(nodes) - len(unusable)
    rule = f"S701 must have at least {needed} usable nodes ({parts}), {usable} of {len(nodes)} are{kept_away}"
    return Violation("cluster.nodes", None, rule, reason, f"add {needed - usable} nodes")


def _why(own: Sequence[str], place_of: Mapping[str, Node], before: Sequence[str]) -> str:
    """These nodes: how many as before, and how near to each other."""
    if tuple(before) == tuple(own):
        return "where the previous plan has it"
    stayed = len(set(before) & set(own))
    return _spread([place_of[name] for name in own]) + (f"; {stayed} of {len(own)} nodes as before" if stayed else "")


def _spread(nodes: Sequence[Node]) -> str:
    """`1 leaf, 5 racks`, of what the spec names."""
    kinds = {"leaf": {node.leaf for node in nodes} - {""}, "rack": {node.rack for node in nodes} - {""}}
    plural = {"leaf": "leaves", "rack": "racks"}
    parts = [f"{len(places)} {kind if len(places) == 1 else plural[kind]}" for kind, places in kinds.items() if places]
    return "in " + ", ".join(parts) if parts else "the first that were free"

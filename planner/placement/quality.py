"""The quality of a placement: four counts, each with a bound.

The counts are whole numbers, in the order in which they matter; less is better:
    leaves       leaf switches that a unit is under, summed over units; `domains` counts NVLink domains instead
    racks        racks with an active unit, summed over the states of the day: other work can use the rest
    rack_loss    decode units that the loss of one rack stops, at worst; mixed units if there is no decode
    moves        nodes of units that these did not have in the previous plan

A count is left out if the spec names none of its places, such as racks. If the spec names some, a node without a named
place counts as a place of its own.
A bound counts nodes and not whole units, so it holds for every placement, but may be too low to reach. A count at its
bound is proven to be the best. A count above its bound may still be the best.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from planner.placement.task import Assignment, LeafKind, Places, Task, fewest_places

LEAVES: dict[LeafKind, str] = {
    "leaves": "leaf switches under which units stand, summed over units",
    "domains": "NVLink domains that units stand in, summed over units",
}


@dataclass(frozen=True)
class Objective:
    """A count, lower is better, and its bound: no placement of the task has a lower count."""

    name: str
    value: int
    bound: int
    meaning: str

    @property
    def excess(self) -> int:
        """Return how far the count is above its bound."""
        return self.value - self.bound

    @property
    def is_proven(self) -> bool:
        """Return whether the count is at its bound, so that no placement has a lower one."""
        return self.excess == 0


def measure(task: Task, assignment: Assignment) -> tuple[Objective, ...]:
    """Return all counts of `assignment` with their bounds, most important first."""
    counts = [
        _leaves(task, assignment),
        _racks(task, assignment),
        _rack_loss(task, assignment),
        _count_new_nodes(task, assignment),
    ]
    return tuple(count for count in counts if count is not None)


def _leaves(task: Task, assignment: Assignment) -> Objective | None:
    leaves = task.leaves
    if leaves is None:
        return None
    value = sum(len(_touched(cells, leaves)) for cells in assignment)
    bound = sum(fewest_places(leaves.largest_first, unit.num_nodes) for unit in task.units)
    return Objective(task.leaves_are, value, bound, LEAVES[task.leaves_are])


def _racks(task: Task, assignment: Assignment) -> Objective | None:
    leafwise = list(chain.from_iterable(cell.racks for cell in task.cells))
    largest_first = task.racks.largest_first if task.racks else sorted(leafwise, reverse=True)
    if not largest_first:
        return None
    value = _racks_in_use(task, assignment, task.racks) if task.racks else _racks_needed(task, assignment)
    bound = sum(
        state.weight * fewest_places(largest_first, sum(task.units[unit].num_nodes for unit in state.units))
        for state in task.states
    )
    return Objective("racks", value, bound, "racks in use, summed over the states of the day")


def _racks_in_use(task: Task, assignment: Assignment, racks: Places) -> int:
    touched = [_touched(cells, racks) for cells in assignment]
    return sum(state.weight * len(set().union(*(touched[unit] for unit in state.units))) for state in task.states)


def _racks_needed(task: Task, assignment: Assignment) -> int:
    """Return the number of racks in use, summed over the day's states by their weights, if cells are whole leaves.

    Under each leaf a state uses the fewest racks that hold the nodes of its units.
    """
    value = 0
    for state in task.states:
        nodes: Counter[int] = Counter()
        for unit in state.units:
            nodes.update(assignment[unit])
        value += state.weight * sum(fewest_places(task.cells[cell].racks, count) for cell, count in nodes.items())
    return value


def _rack_loss(task: Task, assignment: Assignment) -> Objective | None:
    """Return the most producers that the loss of one rack stops; None without racks or without producers.

    A unit stops if it has a node in the lost rack. The bound assumes that every unit is in as few racks as hold its
    nodes.
    """
    racks = task.racks
    if racks is None or not task.producers:
        return None
    touched = Counter(rack for unit in task.producers for rack in _touched(assignment[unit], racks))
    min_touched = sum(fewest_places(racks.largest_first, task.units[unit].num_nodes) for unit in task.producers)
    phase = task.units[task.producers[0]].phase
    meaning = f"{phase} units that the loss of one rack stops, at worst"
    return Objective("rack_loss", max(touched.values()), -(-min_touched // len(racks.sizes)), meaning)


def _count_new_nodes(task: Task, assignment: Assignment) -> Objective | None:
    """Return how many nodes are new to units of the previous plan; None if no unit has a previous node.

    Giving up a node does not count. In each cell, a unit is assumed to take its previous nodes first.
    """
    if not task.had_nodes:
        return None
    value = sum(
        task.units[unit].num_nodes - sum(min(count, task.before[unit].get(cell, 0)) for cell, count in cells.items())
        for unit, cells in enumerate(assignment)
        if unit in task.had_nodes
    )
    bound = sum(max(0, task.units[unit].num_nodes - sum(task.before[unit].values())) for unit in sorted(task.had_nodes))
    return Objective("moves", value, bound, "nodes that units of the previous plan did not have")


def _touched(cells: Mapping[int, int], places: Places) -> set[int]:
    return {places.of_cell[cell] for cell in cells}

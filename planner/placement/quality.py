"""The quality of a placement: five counts, each with a bound.

The counts are whole numbers, in the order in which they matter; less is better:
    leaves       leaf switches of each unit, summed over units; `domains` counts NVLink domains in their place
    racks        racks with an active unit, summed over the states of the day: other work can use the rest
    rack_loss    decode units that the loss of one rack stops, at worst; mixed units if there is no decode
    power_loss   the same for a power domain
    moves        nodes of units that a previous plan did not give them

A count is left out if the spec names none of its places. A node without a name is a place of its own.
A bound holds for every placement that is as good in the counts above and keeps the same units in place. The bounds
computed here hold for every placement, and the exact search raises them (`exact.py`).
A count at its bound is proven: nothing better exists.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from operator import mul

from planner.placement.bound import Kinds, min_extra_leaves, min_racks, racks_by_whole_units
from planner.placement.task import Assignment, LeafKind, Places, Task, fewest

__all__ = ["Objective", "measure"]

LEAVES: dict[LeafKind, str] = {
    "leaves": "leaf switches under which units stand, summed over units",
    "domains": "NVLink domains that units stand in, summed over units",
}


@dataclass(frozen=True)
class Objective:
    """A count and its bound.

    No placement that is as good in the counts before it, and keeps the same units in place, gets below the bound.
    """

    name: str
    value: int
    bound: int
    meaning: str

    @property
    def excess(self) -> int:
        """The value less the bound."""
        return self.value - self.bound

    @property
    def is_proven(self) -> bool:
        """Whether nothing better exists."""
        return self.excess == 0


def measure(task: Task, assignment: Assignment) -> tuple[Objective, ...]:
    """Return all counts of `assignment`, most important first."""
    counts = [
        _leaves(task, assignment),
        _racks(task, assignment),
        _loss(task, assignment, "rack_loss", "rack", task.racks),
        _loss(task, assignment, "power_loss", "power domain", task.powers),
        _moves(task, assignment),
    ]
    return tuple(count for count in counts if count is not None)


def _leaves(task: Task, assignment: Assignment) -> Objective | None:
    leaves = task.leaves
    if leaves is None:
        return None
    value = sum(len(_touched(cells, leaves)) for cells in assignment)
    bound = sum(fewest(leaves.largest_first, unit.num_nodes) for unit in task.units)
    if task.kinds and value > bound:
        bound += min_extra_leaves(leaves.sizes, task.kinds, _larger_than_a_leaf(task, leaves))
    return Objective(task.leaves_are, value, bound, LEAVES[task.leaves_are])


def _larger_than_a_leaf(task: Task, leaves: Places) -> tuple[int, int]:
    """Return the total nodes of units larger than a leaf, and the fewest leaves for them."""
    large = [unit.num_nodes for unit in task.units if unit.num_nodes > leaves.largest_first[0]]
    return sum(large), sum(fewest(leaves.largest_first, num_nodes) for num_nodes in large)


def _racks(task: Task, assignment: Assignment) -> Objective | None:
    largest_first = task.racks.largest_first if task.racks else sorted(chain(*task.racks_of_leaves), reverse=True)
    if not largest_first:
        return None
    value = _racks_in_use(task, assignment, task.racks) if task.racks else _racks_needed(task, assignment)
    bounds = [fewest(largest_first, sum(task.units[unit].num_nodes for unit in state.units)) for state in task.states]
    bound = sum(state.weight * least for state, least in zip(task.states, bounds, strict=True))
    if value > bound and task.leaves and task.kinds and task.racks_of_leaves:
        whole = _racks_of_whole_units(task, assignment, task.leaves, task.kinds)
        bound = sum(map(mul, map(max, bounds, whole), (state.weight for state in task.states)))
    return Objective("racks", value, bound, "racks in use, summed over the states of the day")


def _racks_in_use(task: Task, assignment: Assignment, racks: Places) -> int:
    touched = [_touched(cells, racks) for cells in assignment]
    return sum(state.weight * len(set().union(*(touched[unit] for unit in state.units))) for state in task.states)


def _racks_needed(task: Task, assignment: Assignment) -> int:
    """Return the racks in use if cells are whole leaves: the fewest racks of each that hold its active nodes."""
    value = 0
    for state in task.states:
        nodes: Counter[int] = Counter()
        for unit in state.units:
            nodes.update(assignment[unit])
        value += state.weight * sum(fewest(task.cells[cell].racks, count) for cell, count in nodes.items())
    return value


def _racks_of_whole_units(task: Task, assignment: Assignment, leaves: Places, kinds: Kinds) -> list[int]:
    """Return a lower bound on the racks of each state.

    At most as many units are split as this assignment has leaves beyond those that units need.
    """
    extra = sum(
        len(_touched(cells, leaves)) - fewest(leaves.largest_first, unit.num_nodes)
        for unit, cells in zip(task.units, assignment, strict=True)
    )
    table = racks_by_whole_units(task.racks_of_leaves, kinds)
    (small, num_small), (big, num_big) = kinds
    states = [[task.units[unit].num_nodes for unit in state.units] for state in task.states]
    return [min_racks(table, num_small and sizes.count(small), num_big and sizes.count(big), extra) for sizes in states]


def _loss(task: Task, assignment: Assignment, name: str, kind: str, places: Places | None) -> Objective | None:
    """Return how many units the loss of one place stops, at worst: all units with nodes there.

    The bound assumes that every unit touches the fewest places that it needs.
    """
    if places is None or not task.lost:
        return None
    touched = Counter(place for unit in task.lost for place in _touched(assignment[unit], places))
    min_touched = sum(fewest(places.largest_first, task.units[unit].num_nodes) for unit in task.lost)
    phase = task.units[task.lost[0]].phase
    meaning = f"{phase} units that the loss of one {kind} stops, at worst"
    return Objective(name, max(touched.values()), -(-min_touched // len(places.sizes)), meaning)


def _moves(task: Task, assignment: Assignment) -> Objective | None:
    """Return how many nodes units did not have before; units are assumed to take their previous nodes first.

    Giving up a node is no move.
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

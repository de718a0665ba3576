"""How good a placement is, count by count, each beside a bound.

The counts are whole numbers, in the order in which they matter; less is better:
    leaves       leaf switches under which units stand, summed over units
    racks        racks that any active unit touches, summed over the states of the day: the others are free for others
    rack_loss    decode units that the loss of one rack stops, at worst; mixed units where there is no decode
    power_loss   the same for a power domain
    moves        nodes that a unit has and that a previous plan did not give it

A count whose places the spec does not name is left out. No placement that is as good in the counts above it is below
a count's bound; the bounds computed here hold for every placement, and the exact search raises them (`exact.py`).
A count at its bound is proven: nothing better exists.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from planner.placement.task import Places, Split, Task, fewest

__all__ = ["Objective", "measure"]


@dataclass(frozen=True)
class Objective:
    """A count, and what no placement can be below that is as good in the counts before it."""

    name: str
    value: int
    bound: int
    meaning: str

    @property
    def excess(self) -> int:
        """Above the bound."""
        return self.value - self.bound

    @property
    def is_proven(self) -> bool:
        """Whether nothing better exists."""
        return self.excess == 0


def measure(task: Task, split: Split) -> tuple[Objective, ...]:
    """All counts of `split`, most important first."""
    counts = [
        _leaves(task, split),
        _racks(task, split),
        _loss(task, split, "rack_loss", "rack", task.racks),
        _loss(task, split, "power_loss", "power domain", task.powers),
        _moves(task, split),
    ]
    return tuple(count for count in counts if count is not None)


def _leaves(task: Task, split: Split) -> Objective | None:
    leaves = task.leaves
    if leaves is None:
        return None
    value = sum(len(_touched(cells, leaves)) for cells in split)
    bound = sum(fewest(leaves.largest_first, unit.num_nodes) for unit in task.units)
    return Objective("leaves", value, bound, "leaf switches under which units stand, summed over units")


def _racks(task: Task, split: Split) -> Objective | None:
    racks = task.racks
    if racks is None:
        return None
    touched = [_touched(cells, racks) for cells in split]
    value = bound = 0
    for state in task.states:
        num_nodes = sum(task.units[unit].num_nodes for unit in state.units)
        value += state.weight * len(set().union(*(touched[unit] for unit in state.units)))
        bound += state.weight * fewest(racks.largest_first, num_nodes)
    return Objective("racks", value, bound, "racks in use, summed over the states of the day")


def _loss(task: Task, split: Split, name: str, kind: str, places: Places | None) -> Objective | None:
    """A place that is touched by two units stops both; every unit touches as many places as it needs at least."""
    if places is None or not task.lost:
        return None
    touched = Counter(place for unit in task.lost for place in _touched(split[unit], places))
    least_touched = sum(fewest(places.largest_first, task.units[unit].num_nodes) for unit in task.lost)
    phase = task.units[task.lost[0]].phase
    meaning = f"{phase} units that the loss of one {kind} stops, at worst"
    return Objective(name, max(touched.values()), -(-least_touched // len(places.sizes)), meaning)


def _moves(task: Task, split: Split) -> Objective | None:
    """Units take the nodes that they had before any others; a node that is gone, or of a larger unit, is no move."""
    if not task.had_nodes:
        return None
    value = sum(
        task.units[unit].num_nodes - sum(min(count, task.before[unit].get(cell, 0)) for cell, count in cells.items())
        for unit, cells in enumerate(split)
        if unit in task.had_nodes
    )
    bound = sum(max(0, task.units[unit].num_nodes - sum(task.before[unit].values())) for unit in sorted(task.had_nodes))
    return Objective("moves", value, bound, "nodes that units of the previous plan did not have")


def _touched(cells: Mapping[int, int], places: Places) -> set[int]:
    return {places.of_cell[cell] for cell in cells}

"""The free nodes of a cluster while units are placed; finds where a unit fits and leaves the least room.

Leaves, and the racks under each leaf, are indexed by their number of free nodes. To find the one with the least room
that is enough takes as many steps as there are different numbers of free nodes, even with thousands of racks.
"""

from collections.abc import Iterable

from planner.placement.task import Assignment, Task

BySize = dict[int, dict[int, None]]  # number of free nodes (above 0) -> leaves or racks that have so many


class Room:
    """The free nodes of each cell. The `take` methods use some up."""

    def __init__(self, task: Task, assignment: Assignment) -> None:
        """Start with all nodes of `task` free, except the nodes that `assignment` uses."""
        self.free = list(task.sizes)
        self._shelf_of, self._leaf_of, self._cells = _shelves(task)
        self._in_shelf = [0] * len(self._cells)
        self._in_leaf = [0] * (1 + max(self._leaf_of))
        for cells in assignment:
            for cell, count in cells.items():
                self.free[cell] -= count
        for cell, count in enumerate(self.free):
            self._in_shelf[self._shelf_of[cell]] += count
        self._leaves: BySize = {}
        self._shelves: list[BySize] = [{} for _ in self._in_leaf]  # leaf -> its shelves
        for shelf, leaf in enumerate(self._leaf_of):
            self._in_leaf[leaf] += self._in_shelf[shelf]
            _put(self._shelves[leaf], shelf, self._in_shelf[shelf])
        for leaf, count in enumerate(self._in_leaf):
            _put(self._leaves, leaf, count)

    def take(self, cell: int, count: int) -> None:
        """Take `count` free nodes of `cell`."""
        shelf = self._shelf_of[cell]
        leaf = self._leaf_of[shelf]
        for by_size, place, counts in (
            (self._shelves[leaf], shelf, self._in_shelf),
            (self._leaves, leaf, self._in_leaf),
        ):
            _remove(by_size, place, counts[place])
            counts[place] -= count
            _put(by_size, place, counts[place])
        self.free[cell] -= count

    def take_snug(self, num_nodes: int) -> dict[int, int]:
        """Take `num_nodes` free nodes under as few leaves as possible; return cell -> number of nodes taken.

        If one leaf has enough room, the nodes come from the leaf with the least room that is enough.
        """
        chosen: dict[int, int] = {}
        while num_nodes:
            leaf = _snuggest(self._leaves, num_nodes)
            taken = min(num_nodes, self._in_leaf[leaf])
            chosen |= self._take_under(leaf, taken)
            num_nodes -= taken
        return chosen

    def take_near(self, cells: Iterable[int], num_nodes: int) -> dict[int, int]:
        """Take `num_nodes` free nodes near `cells`; return cell -> number of nodes taken.

        The nodes come from the racks of `cells`, then from the leaves above `cells`, then from anywhere.
        """
        chosen: dict[int, int] = {}
        shelves = dict.fromkeys(self._shelf_of[cell] for cell in cells)
        for shelf in shelves:
            chosen |= self._take_from_shelf(shelf, min(num_nodes - sum(chosen.values()), self._in_shelf[shelf]))
        for leaf in dict.fromkeys(self._leaf_of[shelf] for shelf in shelves):
            chosen |= self._take_under(leaf, min(num_nodes - sum(chosen.values()), self._in_leaf[leaf]))
        return chosen | self.take_snug(num_nodes - sum(chosen.values()))

    def take_from(self, cell: int, num_nodes: int) -> dict[int, int]:
        """Take `num_nodes` free nodes of `cell`, and the rest near `cell`; return cell -> number of nodes taken."""
        first = {cell: min(num_nodes, self.free[cell])}
        self.take(cell, first[cell])
        return first | self.take_near(first, num_nodes - first[cell])

    def _take_under(self, leaf: int, num_nodes: int) -> dict[int, int]:
        """Take `num_nodes` free nodes under `leaf`; return cell -> number of nodes taken.

        The nodes come from the rack with the least room that is enough; if none is enough, from the racks with most
        room.
        """
        chosen: dict[int, int] = {}
        while num_nodes:
            shelf = _snuggest(self._shelves[leaf], num_nodes)
            taken = min(num_nodes, self._in_shelf[shelf])
            chosen |= self._take_from_shelf(shelf, taken)
            num_nodes -= taken
        return chosen

    def _take_from_shelf(self, shelf: int, num_nodes: int) -> dict[int, int]:
        chosen: dict[int, int] = {}
        for cell in self._cells[shelf]:
            taken = min(num_nodes - sum(chosen.values()), self.free[cell])
            if taken:
                chosen[cell] = taken
                self.take(cell, taken)
        return chosen


def _shelves(task: Task) -> tuple[list[int], list[int], list[list[int]]]:
    """Return cell -> shelf, shelf -> leaf and shelf -> cells. A shelf is the part of a rack under one leaf.

    Without racks each cell is a shelf.
    """
    numbers: dict[tuple[int, int], int] = {}
    shelf_of = []
    for cell in range(len(task.cells)):
        leaf = task.leaves.of_cell[cell] if task.leaves else 0
        rack = task.racks.of_cell[cell] if task.racks else cell
        shelf_of.append(numbers.setdefault((leaf, rack), len(numbers)))
    cells: list[list[int]] = [[] for _ in numbers]
    for cell, shelf in enumerate(shelf_of):
        cells[shelf].append(cell)
    return shelf_of, [leaf for leaf, _ in numbers], cells


def _snuggest(by_size: BySize, num_nodes: int) -> int:
    """Return the leaf or rack with the least room that is enough for `num_nodes`.

    If none has enough room, return the one with most room.
    """
    enough = [size for size in by_size if size >= num_nodes]
    return next(iter(by_size[min(enough) if enough else max(by_size)]))


def _put(by_size: BySize, place: int, count: int) -> None:
    if count:
        by_size.setdefault(count, {})[place] = None


def _remove(by_size: BySize, place: int, count: int) -> None:
    if count:
        del by_size[count][place]
        if not by_size[count]:
            del by_size[count]

"""The best placement there is, by integer programming, count after count.

    minimise count k, over assignments that are no worse than what was reached in counts 1 .. k - 1

with whole numbers, for a unit u, a cell c, a leaf, rack or power domain p, and a state s of the day
    x[u, c]   nodes of u in c:          sum over c = nodes of u,  sum over u <= nodes of c
    t[u, p]   1 where u touches p:      x[u, cells of p] <= min(nodes of u, nodes of p) t[u, p]
    d[p, s]   1 where s uses rack p:    sum over units of s of x[u, cells of p] <= nodes of p times d[p, s]
    w         the worst loss:           sum over decode units of t[u, p] <= w
    k[u, c]   nodes of u that stay:     k[u, c] <= x[u, c],  k[u, c] <= nodes that u had in c

and x[u, c] fixed for units that a previous plan keeps where they are.

HiGHS solves it (`program.py`). Where its limit is reached, the best that was found is taken with the bound that was
proven. It starts from a placement and is never worse than that.

It is for small tasks: places that are alike, and units that are, make a tree of equals that no large one gets through.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from planner.placement.program import Program, Terms
from planner.placement.quality import Objective, measure
from planner.placement.task import Assignment, Places, State, Task, fewest

__all__ = ["exact"]

TREE_NODES = {"mip_max_nodes": 200}  # of the search for one count


def exact(
    task: Task,
    start: Assignment,
    bounds: Sequence[int] = (),
    options: Mapping[str, bool | int | float] = TREE_NODES,
) -> tuple[Assignment, tuple[Objective, ...]]:
    """Return the best assignment, and its counts with what was proven of each.

    `start`: any assignment with the kept units where they stand. `bounds`: of its counts, where more is known than
    `measure` does. `options`: limits for HiGHS.
    """
    formulation = _Formulation(task, options)
    program = formulation.program
    counts = measure(task, start)
    best, proven = start, [max(count.bound, *bounds[number : number + 1], 0) for number, count in enumerate(counts)]
    for number, count in enumerate(counts):
        terms, constant = formulation.count(count.name)
        if measure(task, best)[number].value > proven[number]:
            found = program.minimise(terms, formulation.values(best))
            best = formulation.assignment(found.values)
            proven[number] = max(proven[number], found.bound + constant)
        program.between(proven[number] - constant, terms, measure(task, best)[number].value - constant)
    return best, tuple(replace(each, bound=bound) for each, bound in zip(measure(task, best), proven, strict=True))


class _Formulation:
    """The program's columns by their meaning, and the counts as sums of them."""

    def __init__(self, task: Task, options: Mapping[str, bool | int | float]) -> None:
        self.program = Program(options)
        self._task = task
        self._meaning: list[Callable[[Assignment], int]] = []  # column -> what it is in an assignment
        self._takes = {
            (unit, cell): self._column(min(wanted.num_nodes, size), partial(_nodes, unit, cell))
            for unit, wanted in enumerate(task.units)
            for cell, size in enumerate(task.sizes)
        }
        for unit, wanted in enumerate(task.units):
            self.program.between(wanted.num_nodes, self._nodes_of([unit], range(len(task.cells))), wanted.num_nodes)
        for cell, size in enumerate(task.sizes):
            self.program.between(0, self._nodes_of(range(len(task.units)), [cell]), size)
        for unit, cell in product(sorted(task.kept), range(len(task.cells))):
            had = task.before[unit].get(cell, 0)
            self.program.between(had, self._nodes_of([unit], [cell]), had)

    def values(self, assignment: Assignment) -> list[int]:
        """Return the values of the columns that there are so far, for `assignment`."""
        return [value(assignment) for value in self._meaning]

    def assignment(self, values: tuple[int, ...]) -> Assignment:
        """Return the assignment that the columns' `values` describe."""
        assignment: list[dict[int, int]] = [{} for _ in self._task.units]
        for (unit, cell), column in self._takes.items():
            if values[column]:
                assignment[unit][cell] = values[column]
        return assignment

    def count(self, name: str) -> tuple[Terms, int]:
        """Add the columns and rows for a count; return it as a sum of terms and a constant."""
        task = self._task
        if name == task.leaves_are:
            assert task.leaves
            return [term for unit in range(len(task.units)) for term in self._touches(unit, task.leaves)], 0
        if name == "racks":
            assert task.racks
            return [term for state in task.states for term in self._uses(state, task.racks)], 0
        if name == "moves":
            return self._stays(), sum(task.units[unit].num_nodes for unit in task.had_nodes)
        places = task.racks if name == "rack_loss" else task.powers
        assert places
        return self._worst(places), 0

    def _column(self, most: int, meaning: Callable[[Assignment], int]) -> int:
        self._meaning.append(meaning)
        return self.program.column(most)

    def _nodes_of(self, units: Iterable[int], cells: Iterable[int]) -> list[tuple[int, int]]:
        return [(self._takes[unit, cell], 1) for unit, cell in product(units, cells)]

    def _touches(self, unit: int, places: Places) -> Terms:
        num_nodes = self._task.units[unit].num_nodes
        terms = []
        for place, cells in enumerate(places.cells):
            column = self._column(1, partial(_touch, unit, cells))
            most = min(num_nodes, places.sizes[place])
            self.program.at_most([*self._nodes_of([unit], cells), (column, -most)], 0)
            terms.append((column, 1))
        self.program.at_least(terms, fewest(places.largest_first, num_nodes))
        return terms

    def _uses(self, state: State, racks: Places) -> Terms:
        num_nodes = sum(self._task.units[unit].num_nodes for unit in state.units)
        terms = []
        for rack, cells in enumerate(racks.cells):
            column = self._column(1, partial(_use, state, cells))
            self.program.at_most([*self._nodes_of(state.units, cells), (column, -racks.sizes[rack])], 0)
            terms.append((column, state.weight))
        self.program.at_least([(column, 1) for column, _ in terms], fewest(racks.largest_first, num_nodes))
        return terms

    def _worst(self, places: Places) -> Terms:
        lost = self._task.lost
        worst = self._column(len(lost), partial(_loss, lost, places))
        touches = [self._touches(unit, places) for unit in lost]
        for at_place in zip(*touches, strict=True):
            self.program.at_most([*at_place, (worst, -1)], 0)
        return [(worst, 1)]

    def _stays(self) -> Terms:
        terms = []
        for unit in sorted(self._task.had_nodes):
            for cell, had in sorted(self._task.before[unit].items()):
                column = self._column(had, partial(_stay, unit, cell, had))
                self.program.at_most([(column, 1), (self._takes[unit, cell], -1)], 0)
                terms.append((column, -1))
        return terms


def _nodes(unit: int, cell: int, assignment: Assignment) -> int:
    return assignment[unit].get(cell, 0)


def _touch(unit: int, cells: Iterable[int], assignment: Assignment) -> int:
    return int(any(cell in assignment[unit] for cell in cells))


def _use(state: State, cells: Iterable[int], assignment: Assignment) -> int:
    return int(any(_touch(unit, cells, assignment) for unit in state.units))


def _loss(lost: Iterable[int], places: Places, assignment: Assignment) -> int:
    return max(sum(_touch(unit, cells, assignment) for unit in lost) for cells in places.cells)


def _stay(unit: int, cell: int, had: int, assignment: Assignment) -> int:
    return min(had, _nodes(unit, cell, assignment))

"""Find the best placement by integer programming, one count after the other.

    minimise count k, over assignments that are as good in counts 1 .. k - 1

with whole numbers, for a unit u, a cell c, a leaf, rack or power domain p, and a state s of the day
    x[u, c]   nodes of u in c:          sum over c = nodes of u,  sum over u <= nodes of c
    t[u, p]   1 where u touches p:      x[u, cells of p] <= min(nodes of u, nodes of p) t[u, p]
    d[p, s]   1 where s uses rack p:    sum over units of s of x[u, cells of p] <= nodes of p times d[p, s]
    w         the worst loss:           sum over decode units of t[u, p] <= w
    k[u, c]   nodes of u that stay:     k[u, c] <= x[u, c],  k[u, c] <= nodes that u had in c

and x[u, c] fixed for units that a previous plan keeps where they are.

HiGHS solves it (`program.py`). If it reaches its limit, the result is the best assignment found with the bound proven.
The search starts from a placement and never returns a worse one.

It is for small tasks: interchangeable places and units make the search tree too large for others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from planner.placement.program import Program, Terms
from planner.placement.quality import Objective, measure
from planner.placement.task import Assignment, Places, State, Task, fewest

__all__ = ["solve_exactly"]

TREE_NODES = {"mip_max_nodes": 200}  # for each count


def solve_exactly(
    task: Task,
    start: Assignment,
    bounds: Sequence[int] = (),
    options: Mapping[str, bool | int | float] = TREE_NODES,
) -> tuple[Assignment, tuple[Objective, ...]]:
    """Return the best assignment found, and its counts with proven bounds.

    `start` is any assignment that leaves kept units in place. `bounds` may improve on those of `measure`. `options` are
    limits for HiGHS.
    """
    formulation = _Formulation(task, options)
    program = formulation.program
    counts = measure(task, start)
    best, proven = start, [max(count.bound, *bounds[number : number + 1], 0) for number, count in enumerate(counts)]
    for number, count in enumerate(counts):
        terms, constant = formulation.add_count(count.name)
        if measure(task, best)[number].value > proven[number]:
            found = program.minimise(terms, formulation.values(best))
            best = formulation.assignment(found.values)
            proven[number] = max(proven[number], found.bound + constant)
        program.require_between(proven[number] - constant, terms, measure(task, best)[number].value - constant)
    return best, tuple(replace(each, bound=bound) for each, bound in zip(measure(task, best), proven, strict=True))


class _Formulation:
    """The program for a task: what each column means, and the counts as sums of columns."""

    def __init__(self, task: Task, options: Mapping[str, bool | int | float]) -> None:
        self.program = Program(options)
        self._task = task
        self._meaning: list[Callable[[Assignment], int]] = []  # column -> its value in an assignment
        self._node_columns = {
            (unit, cell): self._add_column(min(wanted.num_nodes, size), partial(_nodes, unit, cell))
            for unit, wanted in enumerate(task.units)
            for cell, size in enumerate(task.sizes)
        }
        for unit, wanted in enumerate(task.units):
            self.program.require_between(
                wanted.num_nodes, self._nodes_of([unit], range(len(task.cells))), wanted.num_nodes
            )
        for cell, size in enumerate(task.sizes):
            self.program.require_between(0, self._nodes_of(range(len(task.units)), [cell]), size)
        for unit, cell in product(sorted(task.kept), range(len(task.cells))):
            had = task.before[unit].get(cell, 0)
            self.program.require_between(had, self._nodes_of([unit], [cell]), had)

    def values(self, assignment: Assignment) -> list[int]:
        """Return the values of all columns so far for `assignment`."""
        return [value(assignment) for value in self._meaning]

    def assignment(self, values: tuple[int, ...]) -> Assignment:
        """Return the assignment with these values of the columns."""
        assignment: list[dict[int, int]] = [{} for _ in self._task.units]
        for (unit, cell), column in self._node_columns.items():
            if values[column]:
                assignment[unit][cell] = values[column]
        return assignment

    def add_count(self, name: str) -> tuple[Terms, int]:
        """Add the columns and rows of a count; return it as a sum of terms and a constant."""
        task = self._task
        if name == task.leaves_are:
            assert task.leaves
            return [term for unit in range(len(task.units)) for term in self._add_touches(unit, task.leaves)], 0
        if name == "racks":
            assert task.racks
            return [term for state in task.states for term in self._add_rack_uses(state, task.racks)], 0
        if name == "moves":
            return self._add_stays(), sum(task.units[unit].num_nodes for unit in task.had_nodes)
        places = task.racks if name == "rack_loss" else task.powers
        assert places
        return self._add_worst_loss(places), 0

    def _add_column(self, most: int, meaning: Callable[[Assignment], int]) -> int:
        self._meaning.append(meaning)
        return self.program.add_column(most)

    def _nodes_of(self, units: Iterable[int], cells: Iterable[int]) -> list[tuple[int, int]]:
        return [(self._node_columns[unit, cell], 1) for unit, cell in product(units, cells)]

    def _add_touches(self, unit: int, places: Places) -> Terms:
        num_nodes = self._task.units[unit].num_nodes
        terms = []
        for place, cells in enumerate(places.cells):
            column = self._add_column(1, partial(_touch, unit, cells))
            most = min(num_nodes, places.sizes[place])
            self.program.require_at_most([*self._nodes_of([unit], cells), (column, -most)], 0)
            terms.append((column, 1))
        self.program.require_at_least(terms, fewest(places.largest_first, num_nodes))
        return terms

    def _add_rack_uses(self, state: State, racks: Places) -> Terms:
        num_nodes = sum(self._task.units[unit].num_nodes for unit in state.units)
        terms = []
        for rack, cells in enumerate(racks.cells):
            column = self._add_column(1, partial(_use, state, cells))
            self.program.require_at_most([*self._nodes_of(state.units, cells), (column, -racks.sizes[rack])], 0)
            terms.append((column, state.weight))
        self.program.require_at_least([(column, 1) for column, _ in terms], fewest(racks.largest_first, num_nodes))
        return terms

    def _add_worst_loss(self, places: Places) -> Terms:
        lost = self._task.lost
        worst = self._add_column(len(lost), partial(_loss, lost, places))
        touches = [self._add_touches(unit, places) for unit in lost]
        for at_place in zip(*touches, strict=True):
            self.program.require_at_most([*at_place, (worst, -1)], 0)
        return [(worst, 1)]

    def _add_stays(self) -> Terms:
        terms = []
        for unit in sorted(self._task.had_nodes):
            for cell, had in sorted(self._task.before[unit].items()):
                column = self._add_column(had, partial(_stay, unit, cell, had))
                self.program.require_at_most([(column, 1), (self._node_columns[unit, cell], -1)], 0)
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

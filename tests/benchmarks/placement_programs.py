"""The placement of units as integer programs for HiGHS, count after count, as a reference for our own search.

    Cells    nodes of every unit in every cell. From nothing, or from a placement: highspy's `setSolution` takes one
             (scipy.optimize.milp has no such parameter)
    Leaves   how many whole units of each kind are under each leaf, and where the few that are split have their nodes.
             Units that are alike have no names, so that most of what is symmetric is gone. It has leaves, and racks
             where states are nested and racks are whole under leaves; it does not know which rack

A unit that is split is under two leaves: so no more units are offered to be split than our placement has leaves that
units do not need, for a placement with more of them is worse in the first count. All times are seconds of one thread.
"""

import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import highspy
import numpy as np

from planner.placement.greedy import leafwise_task
from planner.placement.quality import measure
from planner.placement.task import fewest_places

OPTIONS = {"output_flag": False, "threads": 1, "random_seed": 0, "mip_rel_gap": 0.0, "mip_abs_gap": 0.99}
INFINITE = highspy.kHighsInf


@dataclass(frozen=True)
class Reached:
    """Of one count."""

    name: str
    value: int | None  # none where no solution was found
    is_proven: bool
    seconds: float


class Model:
    """Columns, rows, and counts that are to be minimised one after the other.

    A search starts from what the one before has decided: from those columns alone, for all others follow from them,
    and are larger than they need to be where they were no part of the count. Another solution that is no better does
    not take the place of the start, which is as good in later counts as it was.
    """

    def __init__(self):
        self.solver = highspy.Highs()
        for name, value in OPTIONS.items():
            self.solver.setOptionValue(name, value)
        self.counts = {}  # name -> terms
        self.decided = []  # columns
        self.start = {}  # of them -> value
        self.known = {}  # name -> value of the start, as long as nothing better was found

    def column(self, most):
        """A whole number from 0 to `most`, which follows from those that decide."""
        column = self.solver.getNumCol()
        self.solver.addCol(0.0, 0.0, float(most), 0, np.empty(0, np.int32), np.empty(0))
        self.solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        return column

    def deciding(self, most, start=None):
        """One that decides."""
        column = self.column(most)
        self.decided.append(column)
        if start is not None:
            self.start[column] = start
        return column

    def row(self, least, terms, most):
        """The sum of terms, columns with factors, is between the two."""
        columns, factors = zip(*terms, strict=True)
        self.solver.addRow(least, most, len(terms), np.array(columns, np.int32), np.array(factors, np.float64))

    def minimised(self, seconds):
        """Each count in order, with half of the time that is left; the last with all of it."""
        results = []
        for number, (name, terms) in enumerate(self.counts.items()):
            share = seconds if number == len(self.counts) - 1 else seconds / 2
            reached = self._minimise(name, terms, share)
            results.append(reached)
            seconds -= reached.seconds
            if reached.value is None:
                break
            self.row(0, terms, reached.value)
        return results

    def _minimise(self, name, terms, seconds):
        solver = self.solver
        costs = np.zeros(solver.getNumCol())
        for column, factor in terms:
            costs[column] = factor
        solver.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)
        if self.start:
            columns, values = zip(*self.start.items(), strict=True)
            solver.setSolution(len(columns), np.array(columns, np.int32), np.array(values, np.float64))
        solver.setOptionValue("time_limit", float(seconds))
        began = time.perf_counter()
        solver.run()
        took = time.perf_counter() - began
        if solver.getInfo().primal_solution_status != highspy.kSolutionStatusFeasible:
            return Reached(name, None, is_proven=False, seconds=took)
        values = [round(value) for value in solver.getSolution().col_value]
        value = sum(factor * values[column] for column, factor in terms)
        if value < self.known.get(name, INFINITE):
            self.start = {column: values[column] for column in self.decided}
            self.known = {}
        is_proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return Reached(name, value, is_proven, took)


def cells_model(task, split=None):
    """`Cells`, from `split` if there is one."""
    model = Model()
    model.known = {each.name: each.value for each in measure(task, split)} if split else {}
    units, cells = range(len(task.units)), range(len(task.cells))
    takes = {
        (unit, cell): model.deciding(
            min(task.units[unit].num_nodes, task.sizes[cell]), split and split[unit].get(cell, 0)
        )
        for unit in units
        for cell in cells
    }
    for unit in units:
        num_nodes = task.units[unit].num_nodes
        model.row(num_nodes, [(takes[unit, cell], 1) for cell in cells], num_nodes)
    for cell in cells:
        model.row(0, [(takes[unit, cell], 1) for unit in units], task.sizes[cell])

    def touches(unit, places):
        columns = [model.column(1) for _ in places.sizes]
        for column, own, size in zip(columns, places.cells, places.sizes, strict=True):
            most = min(size, task.units[unit].num_nodes)
            model.row(-INFINITE, [*((takes[unit, cell], 1) for cell in own), (column, -most)], 0)
        return columns

    def worst(places):
        most = model.column(len(task.lost))
        for at_place in zip(*(touches(unit, places) for unit in task.lost), strict=True):
            model.row(-INFINITE, [*((column, 1) for column in at_place), (most, -1)], 0)
        return [(most, 1)]

    if task.leaves:
        model.counts["leaves"] = [(column, 1) for unit in units for column in touches(unit, task.leaves)]
    if task.racks:
        model.counts["racks"] = [
            term for state in task.states for term in _racks_in_use(model, task, state, task.racks, takes)
        ]
        model.counts["rack_loss"] = worst(task.racks)
    return model


def _racks_in_use(model, task, state, racks, takes):
    terms = []
    for own, size in zip(racks.cells, racks.sizes, strict=True):
        column = model.column(1)
        nodes = [(takes[unit, cell], 1) for unit in state.units for cell in own]
        model.row(-INFINITE, [*nodes, (column, -size)], 0)
        terms.append((column, state.weight))
    _at_least(model, terms, racks.largest_first, _nodes_on(task, state))
    return terms


def _at_least(model, terms, largest_first, num_nodes):
    """What adding up nodes says of the racks of a state."""
    model.row(fewest_places(largest_first, num_nodes), [(column, 1) for column, _ in terms], INFINITE)


def _nodes_on(task, state):
    return sum(task.units[unit].num_nodes for unit in state.units)


def leaves_model(task, max_split):
    """`Leaves`; `max_split`: units of each size."""
    model, leafwise = Model(), leafwise_task(task)
    kinds = Counter((unit.num_nodes, task.states_on[index]) for index, unit in enumerate(task.units))
    sizes = leafwise.sizes
    whole = {kind: [model.deciding(min(number, size // kind[0])) for size in sizes] for kind, number in kinds.items()}
    split = [_Split(model, size, kinds, sizes) for size in _split_units(task, sizes, max_split)]
    for kind, number in kinds.items():
        chosen = [(each.is_of[kind], 1) for each in split if kind in each.is_of]
        model.row(number, [*((column, 1) for column in whole[kind]), *chosen], number)
    for leaf, size in enumerate(sizes):
        pieces = [(each.nodes[leaf], 1) for each in split]
        model.row(0, [*((columns[leaf], kind[0]) for kind, columns in whole.items()), *pieces], size)
    model.counts["leaves"] = [
        *((column, 1) for columns in whole.values() for column in columns),
        *((column, 1) for each in split for column in each.touches),
    ]
    if task.racks:
        model.counts["racks"] = [
            term for number in range(len(task.states)) for term in _racks_needed(model, leafwise, number, whole, split)
        ]
    return model


def _split_units(task, leaf_sizes, max_split):
    """Units that may be split, by size; those that are larger than any leaf are."""
    numbers = Counter(unit.num_nodes for unit in task.units)
    for size, number in numbers.items():
        most = number if size > max(leaf_sizes) else min(number, max_split)
        yield from [size] * most


class _Split:
    """A unit that may be split: of which kind it is, if any, and its nodes under each leaf."""

    def __init__(self, model, size, kinds, leaf_sizes):
        self.is_of = {kind: model.deciding(1) for kind in kinds if kind[0] == size}
        self.nodes = [model.deciding(min(size, own)) for own in leaf_sizes]
        self.touches = [model.column(1) for _ in leaf_sizes]
        is_one = [(column, 1) for column in self.is_of.values()]
        model.row(0, is_one, 1)
        model.row(0, [*((column, 1) for column in self.nodes), *((column, -size) for column, _ in is_one)], 0)
        for nodes, touch, own in zip(self.nodes, self.touches, leaf_sizes, strict=True):
            model.row(-INFINITE, [(nodes, 1), (touch, -min(size, own))], 0)

    def on(self, model, leaf, size, state):
        """Nodes under a leaf that are on in a state, at least."""
        column = model.column(size)
        off = [(self.is_of[kind], size) for kind in self.is_of if not kind[1] >> state & 1]
        model.row(0, [(column, 1), (self.nodes[leaf], -1), *off], INFINITE)
        return column


def _racks_needed(model, leafwise, number, whole, split):
    """Racks of each leaf, the largest first, that hold what is on there."""
    state, terms = leafwise.states[number], []
    for leaf, cell in enumerate(leafwise.cells):
        racks = [model.column(1) for _ in cell.racks]
        on = [(columns[leaf], kind[0]) for kind, columns in whole.items() if kind[1] >> number & 1]
        on += [(each.on(model, leaf, len(cell.nodes), number), 1) for each in split]
        model.row(-INFINITE, [*on, *((rack, -size) for rack, size in zip(racks, cell.racks, strict=True))], 0)
        for larger, smaller in pairwise(racks):
            model.row(0, [(larger, 1), (smaller, -1)], 1)
        terms += [(rack, state.weight) for rack in racks]
    largest_first = sorted((size for cell in leafwise.cells for size in cell.racks), reverse=True)
    _at_least(model, terms, largest_first, _nodes_on(leafwise, state))
    return terms

"""An integer program, solved by HiGHS. It knows nothing of placement.

HiGHS runs with one thread, a fixed seed, and a limit on search-tree nodes in place of time, so the same program gives
the same solution. Columns and rows are numbered in the order of their addition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import highspy
import numpy as np

__all__ = ["Program", "Solution", "Terms"]

Terms = Sequence[tuple[int, int]]  # columns, each with its factor

# Objectives are whole numbers, so a gap below 1 is closed.
OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "random_seed": 0,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 0.99,
}
TOLERANCE = 1e-5  # above the solver's own, 1e-6, which computes in floats


@dataclass(frozen=True)
class Solution:
    """The best solution found, and a proven bound."""

    values: tuple[int, ...]  # of the columns; the start's if nothing better was found
    bound: int  # no solution is below it


class Program:
    """Whole columns between bounds, linear rows, and one objective at a time."""

    def __init__(self, options: Mapping[str, bool | int | float]) -> None:
        """Make an empty program. `options` are added to those that make HiGHS repeatable."""
        self._solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in {**OPTIONS, **options}.items():
            assert self._solver.setOptionValue(name, value) == highspy.HighsStatus.kOk, name
        self._num_columns = 0

    def add_column(self, most: int) -> int:
        """Add a column, a whole number from 0 to `most`, and return its index."""
        self._solver.addCol(0.0, 0.0, float(most), 0, np.empty(0, np.int32), np.empty(0))
        self._solver.changeColIntegrality(self._num_columns, highspy.HighsVarType.kInteger)
        self._num_columns += 1
        return self._num_columns - 1

    def require_between(self, least: float, terms: Terms, most: float) -> None:
        """Require the sum of `terms` to be at least `least` and at most `most`."""
        columns = np.array([column for column, _ in terms], np.int32)
        factors = np.array([factor for _, factor in terms], np.float64)
        self._solver.addRow(least, most, len(terms), columns, factors)

    def require_at_least(self, terms: Terms, least: float) -> None:
        """Require the sum of `terms` to be at least `least`."""
        self.require_between(least, terms, highspy.kHighsInf)

    def require_at_most(self, terms: Terms, most: float) -> None:
        """Require the sum of `terms` to be at most `most`."""
        self.require_between(-highspy.kHighsInf, terms, most)

    def minimise(self, terms: Terms, start: Sequence[int]) -> Solution:
        """Minimise the sum of `terms`, starting from the solution `start`."""
        costs = np.zeros(self._num_columns)
        for column, factor in terms:
            costs[column] = factor
        columns = np.arange(self._num_columns, dtype=np.int32)
        self._solver.changeColsCost(self._num_columns, columns, costs)
        self._solver.setSolution(self._num_columns, columns, np.array(start, np.float64))
        self._solver.run()
        values = tuple(round(value) for value in self._solver.getSolution().col_value)
        return Solution(values, ceil(self._solver.getInfo().mip_dual_bound - TOLERANCE))

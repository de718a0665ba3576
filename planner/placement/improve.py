"""Improve a placement by local search over changes of the units that may move.

The search tries, in this order:
    shift      a unit moves all its nodes of one cell to free nodes of another
    exchange   two units exchange nodes of two cells, as many as both have

The search ends when no change helps, or after a number of tries. It has no time limit, because plans must not depend
on the machine.
"""

from collections.abc import Iterator, Sequence

from planner.placement.arrangement import Arrangement, Step
from planner.placement.task import Assignment, Task


def improve(task: Task, assignment: Assignment, tries: int, goal: Sequence[int]) -> tuple[Assignment, int]:
    """Return the best assignment that improving steps reach from `assignment`, and the number of steps tried.

    `goal` has lower bounds on the counts, at which the search may end. Of assignments with equal counts, the less
    crowded one is better (`Arrangement.rating`).
    """
    arrangement = Arrangement(task, assignment)
    rating = arrangement.rating()
    best, best_counts = assignment, arrangement.counts()
    tried, found = 0, True
    while found:
        found = False
        for steps in _candidates(arrangement):
            if tried == tries or best_counts == tuple(goal):
                return best, tried
            tried += 1
            _carry_out(arrangement, steps)
            now = arrangement.rating()
            if now >= rating:
                _carry_out(arrangement, [(unit, target, source, count) for unit, source, target, count in steps])
                continue
            rating, found = now, True
            if arrangement.counts() <= best_counts:
                best, best_counts = arrangement.assignment(), arrangement.counts()
    return best, tried


def _carry_out(arrangement: Arrangement, steps: Sequence[Step]) -> None:
    for step in steps:
        arrangement.shift(*step)


def _candidates(arrangement: Arrangement) -> Iterator[list[Step]]:
    """Yield the changes worth trying, each as steps that are possible at the time when it is yielded."""
    for unit in arrangement.task.movable:
        for source in list(arrangement.cells_of_unit[unit]):
            yield from _shifts(arrangement, unit, source)
            yield from _exchanges(arrangement, unit, source)


def _shifts(arrangement: Arrangement, unit: int, source: int) -> Iterator[list[Step]]:
    for target in range(len(arrangement.free)):
        count = arrangement.cells_of_unit[unit].get(source, 0)
        if target != source and 0 < count <= arrangement.free[target]:
            yield [(unit, source, target, count)]


def _exchanges(arrangement: Arrangement, unit: int, source: int) -> Iterator[list[Step]]:
    kept = arrangement.task.kept
    for target, others in enumerate(arrangement.units_in_cell):
        for other in [each for each in others if each > unit and each not in kept]:
            count = min(arrangement.cells_of_unit[unit].get(source, 0), others.get(other, 0))
            if target != source and count and not _changes_only_names(arrangement, unit, other):
                yield [(unit, source, target, count), (other, target, source, count)]


def _changes_only_names(arrangement: Arrangement, one: int, other: int) -> bool:
    """Return whether units `one` and `other` are alike and in one cell each, so that an exchange changes no count."""
    is_whole = len(arrangement.cells_of_unit[one]) == len(arrangement.cells_of_unit[other]) == 1
    return is_whole and arrangement.task.are_alike(one, other)

"""Local search: units give up cells as long as that makes a placement better.

What is tried, where it can take a unit out of a place at all, and only with units that no previous plan keeps:
    shift      all nodes of a unit in one cell to free nodes of another
    exchange   all nodes that a unit has in one cell for as many of a unit in another cell
    swap       all nodes of two racks of one leaf, where that takes decode units out of a power domain
    trade      all nodes of two units of one size
    anew       one unit taken out, and placed again from some cell on; in small tasks also two together

It ends where nothing of this helps, or after a number of tries: never after a time, so that plans do not depend on one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product

from planner.placement.arrangement import Arrangement, Step
from planner.placement.room import Room
from planner.placement.task import Assignment, Task

__all__ = ["improved"]

PAIRS_SIZE = 150  # units x cells up to which two units are placed anew together: beyond, shakes find more in less time


def improved(task: Task, assignment: Assignment, tries: int, goal: Sequence[int]) -> tuple[Assignment, int]:
    """Return the best assignment reached from `assignment` by steps that each improve it, and how many `tries` it took.

    `goal`: counts that nothing is below. Steps are judged by rating: of two assignments with equal counts, the one that
    is less crowded is better.
    """
    arrangement = Arrangement(task, assignment)
    rating = arrangement.rating()
    best, best_counts = assignment, arrangement.counts()
    tried, found = 0, True
    while found:
        found = False
        for steps in _candidates(arrangement, goal):
            if tried == tries or best_counts == tuple(goal):
                return best, tried
            tried += 1
            if arrangement.touches_more_leaves(steps):  # which counts first
                arrangement.pretend(steps)
                continue
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


def _candidates(arrangement: Arrangement, goal: Sequence[int]) -> Iterator[list[Step]]:
    """Yield the steps worth trying, each from where the arrangement stands when it is asked for."""
    units = arrangement.task.movable
    yield from _swaps(arrangement, goal)
    for unit in units:
        for source in list(arrangement.at[unit]):
            yield from _shifts(arrangement, unit, source)
            yield from _exchanges(arrangement, unit, source)
    for one, other in combinations(units, 2):
        yield from _trades(arrangement, one, other)
    for unit in units:
        yield from _place_anew(arrangement, (unit,))
    if len(units) * len(arrangement.free) <= PAIRS_SIZE:
        for pair in permutations(units, 2):
            yield from _place_anew(arrangement, pair)


def _shifts(arrangement: Arrangement, unit: int, source: int) -> Iterator[list[Step]]:
    for target in range(len(arrangement.free)):
        count = arrangement.at[unit].get(source, 0)
        if target != source and 0 < count <= arrangement.free[target]:
            yield [(unit, source, target, count)]


def _exchanges(arrangement: Arrangement, unit: int, source: int) -> Iterator[list[Step]]:
    kept = arrangement.task.kept
    for target, others in enumerate(arrangement.in_cell):
        for other in [each for each in others if each > unit and each not in kept]:
            count = min(arrangement.at[unit].get(source, 0), others.get(other, 0))
            if target != source and count and not _is_same(arrangement, unit, other):
                yield [(unit, source, target, count), (other, target, source, count)]


def _is_same(arrangement: Arrangement, one: int, other: int) -> bool:
    """Return whether an exchange changes nothing but names."""
    is_whole = len(arrangement.at[one]) == len(arrangement.at[other]) == 1
    return is_whole and arrangement.task.are_alike(one, other)


def _swaps(arrangement: Arrangement, goal: Sequence[int]) -> Iterator[list[Step]]:
    """Yield swaps of racks under a leaf: units touch as many racks as before, but in other power domains."""
    task = arrangement.task
    for one, other in product(arrangement.cells_losing_most(goal), range(len(task.cells))):
        assert task.powers
        is_other_power = task.powers.of_cell[one] != task.powers.of_cell[other]
        is_same_leaf = task.leaves is None or task.leaves.of_cell[one] == task.leaves.of_cell[other]
        mine, theirs = arrangement.in_cell[one], arrangement.in_cell[other]
        is_movable = task.kept.isdisjoint(mine.keys() | theirs.keys())
        if is_movable and is_other_power and is_same_leaf and task.sizes[one] == task.sizes[other]:
            yield [
                *((unit, one, other, count) for unit, count in mine.items()),
                *((unit, other, one, count) for unit, count in theirs.items()),
            ]


def _trades(arrangement: Arrangement, one: int, other: int) -> Iterator[list[Step]]:
    task = arrangement.task
    mine, theirs = arrangement.at[one], arrangement.at[other]
    if len(mine) == len(theirs) == 1:
        return  # an exchange
    if task.units[one].num_nodes == task.units[other].num_nodes and not task.are_alike(one, other):
        yield [*_steps_between(one, mine, theirs), *_steps_between(other, theirs, mine)]


def _place_anew(arrangement: Arrangement, units: Sequence[int]) -> Iterator[list[Step]]:
    task = arrangement.task
    room = Room(task, [{} if unit in units else cells for unit, cells in enumerate(arrangement.at)])
    first, *others = units
    for start in range(len(room.free)):
        if room.free[start]:
            chosen = [room.from_cell(start, task.units[first].num_nodes)]
            chosen += [room.snug(task.units[unit].num_nodes) for unit in others]
            steps = [
                _steps_between(unit, arrangement.at[unit], cells) for unit, cells in zip(units, chosen, strict=True)
            ]
            for cells in chosen:
                room.give(cells)
            if any(steps):
                yield [step for own in steps for step in own]


def _steps_between(unit: int, now: Mapping[int, int], then: Mapping[int, int]) -> list[Step]:
    """Return the steps from the cells that `unit` has now to those that it has then, as many nodes a step as can go."""
    surplus = [[cell, count - then.get(cell, 0)] for cell, count in now.items() if count > then.get(cell, 0)]
    steps = []
    for target, count in then.items():
        wanted = count - now.get(target, 0)
        while wanted > 0:
            source, left = surplus[-1]
            going = min(left, wanted)
            steps.append((unit, source, target, going))
            wanted -= going
            surplus[-1][1] -= going
            if not surplus[-1][1]:
                surplus.pop()
    return steps

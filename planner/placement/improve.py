"""Local search: units give up cells as long as that makes a placement better.

What is tried, where it can take a unit out of a place at all:
    shift      all nodes of a unit in one cell to free nodes of another
    exchange   all nodes that a unit has in one cell for as many of a unit in another cell
    trade      all nodes of two units of one size
    anew       one unit or two taken out, and placed again with the first of them from some cell on

It ends where nothing of this helps, or after a number of tries: never after a time, so that plans do not depend on one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from planner.placement.arrangement import Arrangement
from planner.placement.room import Room
from planner.placement.task import Split, Task

__all__ = ["improved"]

Step = tuple[int, int, int, int]  # unit, from cell, to cell, nodes


def improved(task: Task, split: Split, tries: int) -> tuple[Split, int]:
    """The best that steps, each of them to a better placement, lead to from `split`, and how many `tries` it took."""
    arrangement = Arrangement(task, split)
    rating = arrangement.rating()
    best, best_counts = split, arrangement.counts()
    tried, found = 0, True
    while found:
        found = False
        for steps in _candidates(arrangement):
            if tried == tries:
                return best, tried
            tried += 1
            _carry_out(arrangement, steps)
            now = arrangement.rating()
            if now >= rating:
                _carry_out(arrangement, [(unit, target, source, count) for unit, source, target, count in steps])
                continue
            rating, found = now, True
            if arrangement.counts() < best_counts:
                best, best_counts = arrangement.split(), arrangement.counts()
    return best, tried


def _carry_out(arrangement: Arrangement, steps: Sequence[Step]) -> None:
    for step in steps:
        arrangement.shift(*step)


def _candidates(arrangement: Arrangement) -> Iterator[list[Step]]:
    """Each from where the arrangement stands when it is asked for."""
    units = range(len(arrangement.at))
    for unit in units:
        for source in list(arrangement.at[unit]):
            yield from _shifts(arrangement, unit, source)
            yield from _exchanges(arrangement, unit, source)
    for one, other in combinations(units, 2):
        yield from _trades(arrangement, one, other)
    for unit in units:
        yield from _anew(arrangement, (unit,))
    for pair in permutations(units, 2):
        yield from _anew(arrangement, pair)


def _shifts(arrangement: Arrangement, unit: int, source: int) -> Iterator[list[Step]]:
    for target in range(len(arrangement.free)):
        count = arrangement.at[unit].get(source, 0)
        if target != source and 0 < count <= arrangement.free[target]:
            yield [(unit, source, target, count)]


def _exchanges(arrangement: Arrangement, unit: int, source: int) -> Iterator[list[Step]]:
    for target, others in enumerate(arrangement.in_cell):
        for other in list(others):
            count = min(arrangement.at[unit].get(source, 0), others.get(other, 0))
            if target != source and other != unit and count:
                yield [(unit, source, target, count), (other, target, source, count)]


def _trades(arrangement: Arrangement, one: int, other: int) -> Iterator[list[Step]]:
    task = arrangement.task
    if task.units[one].num_nodes == task.units[other].num_nodes and not task.are_alike(one, other):
        mine, theirs = arrangement.at[one], arrangement.at[other]
        yield [*_instead(one, mine, theirs), *_instead(other, theirs, mine)]


def _anew(arrangement: Arrangement, units: Sequence[int]) -> Iterator[list[Step]]:
    task = arrangement.task
    room = Room(task, [{} if unit in units else cells for unit, cells in enumerate(arrangement.at)])
    first, *others = units
    for start in range(len(room.free)):
        if room.free[start]:
            chosen = [room.from_cell(start, task.units[first].num_nodes)]
            chosen += [room.snug(task.units[unit].num_nodes) for unit in others]
            steps = [_instead(unit, arrangement.at[unit], cells) for unit, cells in zip(units, chosen, strict=True)]
            for cells in chosen:
                room.give(cells)
            if any(steps):
                yield [step for own in steps for step in own]


def _instead(unit: int, now: Mapping[int, int], then: Mapping[int, int]) -> list[Step]:
    """Node by node, from the cells that `unit` has now to those that it has then."""
    surplus = [cell for cell, count in now.items() for _ in range(count - then.get(cell, 0))]
    wanted = [cell for cell, count in then.items() for _ in range(count - now.get(cell, 0))]
    return [(unit, source, target, 1) for source, target in zip(surplus, wanted, strict=True)]

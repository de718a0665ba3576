"""Good placements of any size: several fillings, improved, then shaken and improved again.

No bound of its own and no proof: `quality.py` says how far from the best it can be at most. On small clusters the
tests compare it with the exact search.
"""

from random import Random

from planner.placement.fill import fillings
from planner.placement.improve import improved
from planner.placement.quality import measure
from planner.placement.room import Room
from planner.placement.task import Split, Task

__all__ = ["MAX_TRIES", "better", "greedy"]

MAX_TRIES = 30_000  # of steps of the local search, in all: 1.5 s for 278 nodes
STARTS = 4
SHAKES = 10


def greedy(task: Task) -> Split:
    """A split with all units, near the best by the counts of `quality.py`."""
    starts = sorted(fillings(task), key=lambda split: _values(task, split))[:STARTS]
    best, left = starts[0], MAX_TRIES
    for number, start in enumerate(starts):
        if _is_best(task, best):
            return best
        found, tried = improved(task, start, left // (len(starts) - number))
        best, left = better(task, best, found), left - tried
    random = Random(0)  # noqa: S311 - the same shakes for the same task
    for number in range(SHAKES):
        if _is_best(task, best) or not left:
            return best
        found, tried = improved(task, _shaken(task, best, random, 2 + number % 3), left)
        best, left = better(task, best, found), left - tried
    return best


def better(task: Task, one: Split, other: Split) -> Split:
    """By the counts in their order; `one` if they are equal."""
    return min(one, other, key=lambda split: _values(task, split))


def _values(task: Task, split: Split) -> list[int]:
    return [objective.value for objective in measure(task, split)]


def _is_best(task: Task, split: Split) -> bool:
    return all(objective.is_proven for objective in measure(task, split))


def _shaken(task: Task, split: Split, random: Random, num_units: int) -> Split:
    """`split` with some units taken out, and placed again from cells that are drawn."""
    shaken = [dict(cells) for cells in split]
    units = random.sample(range(len(task.units)), min(num_units, len(task.units)))
    for unit in units:
        shaken[unit] = {}
    room = Room(task, shaken)
    for unit in units:
        start = random.choice([cell for cell, count in enumerate(room.free) if count])
        shaken[unit] = room.from_cell(start, task.units[unit].num_nodes)
    return shaken

"""Search a good placement: improve several starts step by step, then change the best at random and improve it again.

If there are leaves, the search goes over leaves first, then over racks. The choice of leaves settles how many leaves
units are under. If states are nested (the units of each are among those of the next larger one), it also settles how
many racks every state needs: the fewest that hold its nodes under each leaf. There are about a tenth as many leaves as
racks, and no step is wasted on racks that make no difference.

The search proves nothing: `quality.py` bounds how far its result is from the best. On small clusters the tests compare
the result with every possible placement.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from planner.placement.fill import fill_leaves, fill_near_previous, fillings
from planner.placement.improve import improve
from planner.placement.quality import Objective, measure
from planner.placement.room import Room
from planner.placement.task import Assignment, Cell, Task

Objectives = tuple[Objective, ...]

MAX_TRIES = 10_000  # steps that the search over racks may try
LEAF_TRIES = 25_000  # steps that the search over leaves may try, which are quicker: 0.6 s for 278 nodes
STARTS = 4  # fillings to start from; assumed: chosen to meet the time goal of `tidemill plan`
SHAKES = 12  # random changes to start again from; assumed, for the same goal


def place_greedily(task: Task) -> Assignment:
    """Return an assignment of all units that is nearly the best by `quality.measure`; kept units do not move."""
    if not task.had_nodes:
        return _place_anew(task)
    start = fill_near_previous(task)
    near, _ = improve(task, start, MAX_TRIES, [objective.bound for objective in measure(task, start)])
    if _is_best(measure(task, near)):
        return near
    return min(near, _place_anew(task), key=lambda assignment: _values(measure(task, assignment)))


def leafwise_task(task: Task) -> Task:
    """Return the task with one cell for each leaf, in which only kept units have previous nodes."""
    assert task.leaves
    leaf_of = task.leaves.of_cell
    cells = []
    for leaf_cells in task.leaves.cells:
        own = [task.cells[cell] for cell in leaf_cells]
        in_rack: dict[str, int] = {}
        for cell in own:
            in_rack[cell.rack] = in_rack.get(cell.rack, 0) + len(cell.nodes)
        racks = tuple(sorted(in_rack.values(), reverse=True)) if task.racks else ()
        cells.append(Cell(own[0].leaf, "", tuple(node for cell in own for node in cell.nodes), racks))
    before = tuple(
        Counter(leaf_of[cell] for cell, count in own.items() for _ in range(count)) for own in task.kept_assignment
    )
    return replace(task, cells=tuple(cells), before=before, had_nodes=task.kept)


def _place_anew(task: Task) -> Assignment:
    """Return an assignment that keeps kept units in place and ignores the previous nodes of all others."""
    starts = list(fillings(task))
    if (
        task.leaves
        and len(task.leaves.sizes) > 1
        and not any(_is_best(measure(task, assignment)) for assignment in starts)
    ):
        starts.insert(0, _search_leaves_first(task))
    return _search(task, starts, MAX_TRIES, lambda assignment: measure(task, assignment))


def _search_leaves_first(task: Task) -> Assignment:
    leafwise = leafwise_task(task)
    found = _search(
        leafwise, fillings(leafwise), LEAF_TRIES, lambda assignment: measure(task, fill_leaves(task, assignment))
    )
    return fill_leaves(task, found)


def _search(
    task: Task, starts: Iterable[Assignment], tries: int, measure_it: Callable[[Assignment], Objectives]
) -> Assignment:
    """Improve each start, then randomly changed copies of the best assignment (shakes); return the best assignment.

    All of it takes at most `tries` steps. Of equally good assignments the latest is best, so that shakes do not begin
    from the same assignment again.
    """

    def values(assignment: Assignment) -> list[int]:
        return _values(measure_it(assignment))

    starts = sorted(starts, key=values)[:STARTS]
    best, left = starts[0], tries
    random = Random(0)  # noqa: S311 - the same shakes for the same task
    for number in range(len(starts) + SHAKES):
        objectives = measure_it(best)
        if _is_best(objectives) or not left:
            return best
        more = len(starts) - number
        start = starts[number] if more > 0 else _shake(task, best, random, 2 + number % 3)
        found, tried = improve(task, start, left // max(1, more), [objective.bound for objective in objectives])
        best, left = min(found, best, key=values), left - tried
    return best


def _values(objectives: Objectives) -> list[int]:
    return [objective.value for objective in objectives]


def _is_best(objectives: Objectives) -> bool:
    return all(objective.is_proven for objective in objectives)


def _shake(task: Task, assignment: Assignment, random: Random, num_units: int) -> Assignment:
    """Return `assignment` with `num_units` units that may move taken out and placed again, each near a random cell."""
    shaken = [dict(cells) for cells in assignment]
    units = random.sample(task.movable, min(num_units, len(task.movable)))
    for unit in units:
        shaken[unit] = {}
    room = Room(task, shaken)
    for unit in units:
        start = random.choice([cell for cell, count in enumerate(room.free) if count])
        shaken[unit] = room.take_from(start, task.units[unit].num_nodes)
    return shaken

"""Greedy: units one after the other into the cells that suit them best, in several orders.

Two ways, for each of which there are tasks where it is the better one:
    snug        each unit under the leaf, and into the racks, that it leaves least room in
    in a line   rack after rack, the largest first, each filled before the next: the first n nodes of the line touch as
                few racks as n nodes can. So where units stand in the order in which a day's states lose them, every
                state uses as few racks as its nodes need, if there are no leaves to keep together.

Units that are on longest go first, so that those that are switched off together stand together.
"""

from collections.abc import Iterable, Iterator, Sequence

from planner.placement.room import Room
from planner.placement.task import Assignment, Task

__all__ = ["fill_leaves", "fill_near_previous", "fillings"]


def fillings(task: Task) -> Iterator[Assignment]:
    """Yield all fillings that are worth trying, each with the kept units where they stand."""
    for order in _orders(task):
        yield _fill(task, task.standing, order)
        yield _place_in_line(task, order)


def fill_near_previous(task: Task) -> Assignment:
    """Give each unit the nodes that it had before, up to as many as it wants now, and fill in the others."""
    assignment: list[dict[int, int]] = []
    for unit, had in zip(task.units, task.before, strict=True):
        cells: dict[int, int] = {}
        for cell, count in had.items():
            cells[cell] = min(count, unit.num_nodes - sum(cells.values()))
        assignment.append({cell: count for cell, count in cells.items() if count})
    return _fill(task, assignment, _sort_by_activity(task))


def fill_leaves(task: Task, by_leaf: Assignment) -> Assignment:
    """Return racks for units that have leaves: under each leaf one after the other, those that are on longest first.

    Kept units stay in their racks. `by_leaf` is for each unit leaf -> its nodes there. Where states are nested, every
    state uses as few racks of a leaf as its nodes there need.
    """
    assert task.leaves
    lines: list[list[int]] = [[] for _ in task.leaves.sizes]
    for cell in _line_up(task):
        lines[task.leaves.of_cell[cell]].append(cell)
    wants: list[list[tuple[int, int]]] = [[] for _ in lines]
    for unit in _alternate(task, _sort_by_activity(task), set(task.lost)):
        for leaf, num_nodes in by_leaf[unit].items() if unit not in task.kept else ():
            wants[leaf].append((unit, num_nodes))
    assignment = [dict(cells) for cells in task.standing]
    free = Room(task, task.standing).free
    for line, own in zip(lines, wants, strict=True):
        _fill_line(free, line, own, assignment)
    return assignment


def _sort_by_activity(task: Task) -> list[int]:
    """Return the units that are on longest first. Among equals decode units are last, to leave leftovers to prefill."""
    return sorted(range(len(task.units)), key=lambda unit: -task.units[unit].minutes)


def _orders(task: Task) -> list[list[int]]:
    """Return the orders in which units are placed, each once."""
    units = task.units
    by_activity = _sort_by_activity(task)
    lost = set(task.lost)
    orders = [
        by_activity,
        sorted(by_activity, key=lambda unit: (-units[unit].minutes, -units[unit].num_nodes)),
        _alternate(task, by_activity, lost),
        sorted(by_activity, key=lambda unit: -units[unit].num_nodes),
        sorted(by_activity, key=lambda unit: units[unit].num_nodes),
    ]
    return [order for number, order in enumerate(orders) if order not in orders[:number]]


def _alternate(task: Task, order: Sequence[int], lost: set[int]) -> list[int]:
    """Let decode and prefill units that are on equally long take turns, so that few decode units are neighbours."""
    result: list[int] = []
    for minutes in sorted({task.units[unit].minutes for unit in order}, reverse=True):
        group = [unit for unit in order if task.units[unit].minutes == minutes]
        own, others = [unit for unit in group if unit in lost], [unit for unit in group if unit not in lost]
        between = -(-len(others) // max(1, len(own)))
        for number, unit in enumerate(own):
            result += [unit, *others[number * between : (number + 1) * between]]
        result += others[len(own) * between :]
    return result


def _fill(task: Task, placed: Assignment, order: Sequence[int]) -> Assignment:
    """Return `placed` with cells for the nodes that units still lack: near their others, else snug."""
    assignment = [dict(cells) for cells in placed]
    room = Room(task, assignment)
    for unit in order:
        missing = task.units[unit].num_nodes - sum(assignment[unit].values())
        for cell, count in (room.around(assignment[unit], missing) if assignment[unit] else room.snug(missing)).items():
            assignment[unit][cell] = assignment[unit].get(cell, 0) + count
    return assignment


def _place_in_line(task: Task, order: Iterable[int]) -> Assignment:
    """Place the units cell after cell."""
    assignment = [dict(cells) for cells in task.standing]
    wants = [(unit, task.units[unit].num_nodes) for unit in order if unit not in task.kept]
    _fill_line(Room(task, task.standing).free, _line_up(task), wants, assignment)
    return assignment


def _fill_line(
    free_in: Sequence[int], line: Iterable[int], wants: Iterable[tuple[int, int]], assignment: Sequence[dict[int, int]]
) -> None:
    """Put units, each with the nodes that it wants, into the free nodes of the cells of `line`, one after the other."""
    cells = iter(line)
    free = 0
    for unit, num_nodes in wants:
        missing = num_nodes
        while missing:
            while not free:
                cell = next(cells)
                free = free_in[cell]
            taken = min(missing, free)
            assignment[unit][cell] = taken
            free -= taken
            missing -= taken


def _line_up(task: Task) -> list[int]:
    """Return all cells, leaf by leaf, the largest racks of each first."""
    leaves, racks = task.leaves, task.racks

    def key(cell: int) -> tuple[int, int, int, int]:
        leaf = leaves.of_cell[cell] if leaves else 0
        rack = racks.of_cell[cell] if racks else cell
        return (-leaves.sizes[leaf] if leaves else 0, leaf, -racks.sizes[rack] if racks else 0, rack)

    return sorted(range(len(task.cells)), key=key)

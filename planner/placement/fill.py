"""Place units one by one, in several orders, to start the search from.

There are two ways to place units, and each is better for some tasks:
    snug        each unit goes under the leaf, and into the racks, where it leaves the least room
    in a line   racks are filled one after the other, the largest first, so the first n nodes of the line are in the
                fewest racks. If units are in the order in which the day's states switch them off, every state uses the
                fewest racks for its nodes. That holds unless units must be kept under few leaves.

Units that are on longest go first, so that units that are switched off together are neighbours.
"""

from collections.abc import Iterable, Iterator, Sequence

from planner.placement.room import Room
from planner.placement.task import Assignment, Task


def fillings(task: Task) -> Iterator[Assignment]:
    """Yield the assignments from which the search starts, two for each of several orders of units.

    In one, each unit gets the places with the least room that is enough. In the other, units fill cell after cell.
    Kept units stay in place.
    """
    for order in _orders(task):
        yield _fill(task, task.kept_assignment, order)
        yield _place_in_line(task, order)


def fill_near_previous(task: Task) -> Assignment:
    """Return an assignment in which each unit gets the previous nodes that it needs, and new nodes for the rest."""
    assignment: list[dict[int, int]] = []
    for unit, had in zip(task.units, task.before, strict=True):
        cells: dict[int, int] = {}
        for cell, count in had.items():
            cells[cell] = min(count, unit.num_nodes - sum(cells.values()))
        assignment.append({cell: count for cell, count in cells.items() if count})
    return _fill(task, assignment, _sort_by_activity(task))


def fill_leaves(task: Task, by_leaf: Assignment) -> Assignment:
    """Return an assignment to cells, in which units fill the racks under their leaves one by one.

    `by_leaf` has for each unit: leaf -> number of its nodes there. Units that are on longest go first, and kept units
    stay in place. If the units of each state are among those of the next larger state (nested states), every state uses
    the fewest racks of each leaf for its nodes there.
    """
    assert task.leaves
    lines: list[list[int]] = [[] for _ in task.leaves.sizes]
    for cell in _order_cells(task):
        lines[task.leaves.of_cell[cell]].append(cell)
    wants: list[list[tuple[int, int]]] = [[] for _ in lines]
    for unit in _alternate(task, _sort_by_activity(task), set(task.producers)):
        for leaf, num_nodes in by_leaf[unit].items() if unit not in task.kept else ():
            wants[leaf].append((unit, num_nodes))
    assignment = [dict(cells) for cells in task.kept_assignment]
    free = Room(task, task.kept_assignment).free
    for line, own in zip(lines, wants, strict=True):
        _fill_line(free, line, own, assignment)
    return assignment


def _sort_by_activity(task: Task) -> list[int]:
    """Return the units sorted by their time on, longest first. Equal ones keep their order, prefill before decode."""
    return sorted(range(len(task.units)), key=lambda unit: -task.units[unit].minutes)


def _orders(task: Task) -> list[list[int]]:
    """Return the different orders in which to place units."""
    units = task.units
    by_activity = _sort_by_activity(task)
    producers = set(task.producers)
    orders = [
        by_activity,
        sorted(by_activity, key=lambda unit: (-units[unit].minutes, -units[unit].num_nodes)),
        _alternate(task, by_activity, producers),
        sorted(by_activity, key=lambda unit: -units[unit].num_nodes),
        sorted(by_activity, key=lambda unit: units[unit].num_nodes),
    ]
    return [order for number, order in enumerate(orders) if order not in orders[:number]]


def _alternate(task: Task, order: Sequence[int], producers: set[int]) -> list[int]:
    """Return `order` with producers and other units alternating among units that are on equally long.

    Few producers are then neighbours, so the loss of a place stops few of them.
    """
    result: list[int] = []
    for minutes in sorted({task.units[unit].minutes for unit in order}, reverse=True):
        group = [unit for unit in order if task.units[unit].minutes == minutes]
        own, others = [unit for unit in group if unit in producers], [unit for unit in group if unit not in producers]
        between = -(-len(others) // max(1, len(own)))
        for number, unit in enumerate(own):
            result += [unit, *others[number * between : (number + 1) * between]]
        result += others[len(own) * between :]
    return result


def _fill(task: Task, placed: Assignment, order: Sequence[int]) -> Assignment:
    """Return `placed` with each unit's missing nodes added, near its other nodes or, without any, by `take_snug`."""
    assignment = [dict(cells) for cells in placed]
    room = Room(task, assignment)
    for unit in order:
        missing = task.units[unit].num_nodes - sum(assignment[unit].values())
        for cell, count in (
            room.take_near(assignment[unit], missing) if assignment[unit] else room.take_snug(missing)
        ).items():
            assignment[unit][cell] = assignment[unit].get(cell, 0) + count
    return assignment


def _place_in_line(task: Task, order: Iterable[int]) -> Assignment:
    """Return an assignment that places the units in `order` one after the other, so that they fill cell after cell."""
    assignment = [dict(cells) for cells in task.kept_assignment]
    wants = [(unit, task.units[unit].num_nodes) for unit in order if unit not in task.kept]
    _fill_line(Room(task, task.kept_assignment).free, _order_cells(task), wants, assignment)
    return assignment


def _fill_line(
    free_in: Sequence[int], line: Iterable[int], wants: Iterable[tuple[int, int]], assignment: Sequence[dict[int, int]]
) -> None:
    """Add units to `assignment` one after the other, on the free nodes of the cells in `line`.

    `wants` has (unit, number of nodes) for each unit to add. `free_in` has the number of free nodes of each cell.
    """
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


def _order_cells(task: Task) -> list[int]:
    """Return all cells in the order in which units fill them: largest leaf first, in it the largest rack first."""
    leaves, racks = task.leaves, task.racks

    def key(cell: int) -> tuple[int, int, int, int]:
        leaf = leaves.of_cell[cell] if leaves else 0
        rack = racks.of_cell[cell] if racks else cell
        return (-leaves.sizes[leaf] if leaves else 0, leaf, -racks.sizes[rack] if racks else 0, rack)

    return sorted(range(len(task.cells)), key=key)

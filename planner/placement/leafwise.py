"""Choose leaves first: which units go under which leaf, and only then into which racks.

The choice of leaves settles how many leaves units touch. If states are nested, it also settles how many racks every
state of the day needs: the fewest that hold its nodes under each leaf. There are a tenth as many leaves as racks, and a
search over leaves wastes no step on racks that make no difference.
"""

from collections import Counter
from dataclasses import replace

from planner.placement.task import Cell, Task

__all__ = ["leafwise_task"]


def leafwise_task(task: Task) -> Task:
    """Return the task with a cell for each leaf. Only kept units have previous nodes."""
    assert task.leaves
    leaf_of = task.leaves.of_cell
    cells = []
    for leaf_cells in task.leaves.cells:
        own = [task.cells[cell] for cell in leaf_cells]
        in_rack: dict[str, int] = {}
        for cell in own:
            in_rack[cell.rack] = in_rack.get(cell.rack, 0) + len(cell.nodes)
        racks = tuple(sorted(in_rack.values(), reverse=True)) if task.racks else ()
        cells.append(Cell(own[0].leaf, "", "", tuple(node for cell in own for node in cell.nodes), racks))
    before = tuple(
        Counter(leaf_of[cell] for cell, count in own.items() for _ in range(count)) for own in task.kept_assignment
    )
    return replace(task, cells=tuple(cells), before=before, had_nodes=task.kept)

"""Choose the nodes of each unit for an assignment, which says only how many nodes of each cell a unit has.

A unit keeps its previous nodes if it can, at the same ranks, because a rank that stays on its node reads no weights.
All other nodes are taken in the order of the spec, rack by rack.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from planner.layout.nodes import Node
from planner.placement.task import Assignment, Task


def choose_nodes(task: Task, assignment: Assignment, before: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return each unit's nodes in the order of its ranks. `before` has unit -> its nodes in a previous placement."""
    places = {node.name: (cell, node) for cell, each in enumerate(task.cells) for node in each.nodes}
    kept = [
        _keep_nodes(cells, [places[name] for name in before.get(unit.name, ()) if name in places])
        for unit, cells in zip(task.units, assignment, strict=True)
    ]
    taken = {node.name for nodes in kept for node in nodes}
    left = [iter([node for node in cell.nodes if node.name not in taken]) for cell in task.cells]
    result = []
    for unit, cells, own in zip(task.units, assignment, kept, strict=True):
        nodes = list(own)
        for cell, count in cells.items():
            nodes += islice(left[cell], count - sum(places[node.name][0] == cell for node in own))
        result.append(_order_ranks(nodes, before.get(unit.name, ())))
    return result


def _keep_nodes(cells: Mapping[int, int], had: Sequence[tuple[int, Node]]) -> list[Node]:
    """Return the previous nodes that a unit keeps: in each cell at most as many as the unit now has there.

    `cells` has cell -> number of the unit's nodes there now; `had` has (cell, previous node).
    """
    room = dict(cells)
    kept = []
    for cell, node in had:
        if room.get(cell, 0):
            room[cell] -= 1
            kept.append(node)
    return kept


def _order_ranks(nodes: Sequence[Node], before: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a unit's nodes in the order of its ranks, which is rack by rack.

    If `before` has as many nodes, the previous nodes keep their positions.
    """
    names = [node.name for node in _sort_by_rack(nodes)]
    if len(names) != len(before):
        return tuple(names)
    now, had = set(names), set(before)
    new = iter([name for name in names if name not in had])
    return tuple(name if name in now else next(new) for name in before)


def _sort_by_rack(nodes: Sequence[Node]) -> list[Node]:
    """Return `nodes` rack by rack, the rack with most of them first.

    Units of a phase share one expert map. In this order, equal ranks of two units are in similar positions of racks.
    """
    racks: dict[str, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.index):
        racks.setdefault(node.rack, []).append(node)
    return [node for rack in sorted(racks.values(), key=lambda rack: -len(rack)) for node in rack]

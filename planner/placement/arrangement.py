"""A placement that changes step by step, with its counts kept up to date.

A step of the search changes only two cells. `quality.measure` would count all units and states again after it.
"""

from collections import Counter

from planner.placement.task import Assignment, Places, Task

Step = tuple[int, int, int, int]  # unit, from cell, to cell, nodes


class Arrangement:
    """An assignment of nodes to units that `shift` changes, with its counts."""

    def __init__(self, task: Task, assignment: Assignment) -> None:
        self.task = task
        self.cells_of_unit: list[dict[int, int]] = [{} for _ in task.units]  # unit -> cell -> its nodes there
        self.units_in_cell: list[dict[int, int]] = [{} for _ in task.cells]  # cell -> unit -> its nodes there
        self.free = list(task.sizes)
        producers = set(task.producers)
        self._leaves = _TouchCounter(task.leaves, producers) if task.leaves else None
        self._racks = _RackCounter(task, producers) if task.racks else None
        self._inner = _LeafRackCounter(task) if task.cells[0].racks else None
        self._touching = [each for each in (self._leaves, self._racks, self._inner) if each]
        self._kept = 0
        self._to_keep = sum(task.units[unit].num_nodes for unit in task.had_nodes)
        for unit, cells in enumerate(assignment):
            for cell, count in cells.items():
                self._add(unit, cell, count)

    def assignment(self) -> Assignment:
        """Return a copy of the assignment as it is now."""
        return [dict(cells) for cells in self.cells_of_unit]

    def shift(self, unit: int, source: int, target: int, count: int) -> None:
        """Move `count` nodes of `unit` from the cell `source` to the cell `target`.

        An exchange takes two shifts, so the target may hold more nodes than it has until the second one.
        """
        self._add(unit, source, -count)
        self._add(unit, target, count)

    def counts(self) -> tuple[int, ...]:
        """Return the counts, without bounds, that `quality.measure` would return for the assignment."""
        racks = self._racks_at_risk
        return (*self._sums(), *([racks.worst()] if racks else []), *self._moves())

    def _sums(self) -> list[int]:
        racks = self._racks or self._inner
        return [*([self._leaves.total] if self._leaves else []), *([racks.use] if racks else [])]

    def _moves(self) -> list[int]:
        return [self._to_keep - self._kept] if self._to_keep else []

    def rating(self) -> tuple[int, ...]:
        """Return the sort key of the placement: the counts, then crowding, then moves. Lower is better.

        Crowding tells how much units that should not be lost together share racks. Single steps can lower crowding,
        while the worst loss falls only after several steps. Moves alone never justify a step. If cells are whole
        leaves, the crowding of leaves stands for that of racks.
        """
        racks = self._racks_at_risk
        crowded = racks or self._leaves
        losses, crowding = [racks.worst()] if racks else [], [crowded.crowding] if crowded else []
        return (*self._sums(), *losses, *crowding, *self._moves())

    @property
    def _racks_at_risk(self) -> "_RackCounter | None":
        """The racks whose loss would cost tokens.

        None if the spec names no racks, or if no unit produces tokens.
        """
        return self._racks if self.task.producers else None

    def _add(self, unit: int, cell: int, count: int) -> None:
        here = self.cells_of_unit[unit]
        was = here.get(cell, 0)
        now = was + count
        self.free[cell] -= count
        if now:
            here[cell] = self.units_in_cell[cell][unit] = now
        else:
            del here[cell], self.units_in_cell[cell][unit]
        before = self.task.before[unit].get(cell, 0)
        self._kept += min(now, before) - min(was, before)
        for touching in self._touching:
            touching.add(unit, cell, count)


class _TouchCounter:
    """Counts each unit's nodes in each place (leaf or rack), and the units that the loss of a place stops."""

    def __init__(self, places: Places, producers: set[int]) -> None:
        self.total = 0  # places with nodes of a unit, summed over units
        self.crowding = 0  # squares of the losses, summed over places
        self.units: list[dict[int, int]] = [{} for _ in places.sizes]  # place -> unit -> its nodes there
        self._of_cell = places.of_cell
        self._producers = producers
        self._losses = [0] * len(places.sizes)  # place -> number of producers there
        self._places_with = Counter({0: len(places.sizes)})  # loss -> number of places with it

    def add(self, unit: int, cell: int, count: int) -> None:
        place = self._of_cell[cell]
        here = self.units[place]
        was = here.get(unit, 0)
        if was + count:
            here[unit] = was + count
        else:
            del here[unit]
        if not was or not was + count:
            self.record(unit, place, 1 if count > 0 else -1)

    def record(self, unit: int, place: int, by: int) -> None:
        """Record that `unit` got its first node in `place` (`by` is 1), or gave up its last one there (-1)."""
        self.total += by
        if unit in self._producers:
            loss = self._losses[place]
            self._losses[place] = loss + by
            self.crowding += (loss + by) ** 2 - loss**2
            self._places_with[loss] -= 1
            self._places_with[loss + by] += 1

    def worst(self) -> int:
        """Return the largest number of producers that have nodes in one place."""
        return max(loss for loss, places in self._places_with.items() if places)


class _RackCounter(_TouchCounter):
    """Counts each unit's nodes in each rack, and the racks in use.

    A rack counts with the weights of the states in which some unit with nodes in it is on.
    """

    def __init__(self, task: Task, producers: set[int]) -> None:
        assert task.racks is not None
        super().__init__(task.racks, producers)
        self.use = 0
        self._on = task.states_on
        self._weights = [state.weight for state in task.states]
        self._weight_of: dict[int, int] = {}
        self._in_use = [0] * len(self.units)  # rack -> states in which one of its units is on, as bits

    def record(self, unit: int, place: int, by: int) -> None:
        super().record(unit, place, by)
        states = 0
        for other in self.units[place]:
            states |= self._on[other]
        self.use += self._weight(states) - self._weight(self._in_use[place])
        self._in_use[place] = states

    def _weight(self, states: int) -> int:
        if states not in self._weight_of:
            self._weight_of[states] = sum(weight for bit, weight in enumerate(self._weights) if states >> bit & 1)
        return self._weight_of[states]


class _LeafRackCounter:
    """Counts the racks in use if cells are whole leaves: in each state, the fewest racks that hold the active nodes."""

    def __init__(self, task: Task) -> None:
        self.use = 0
        overdrawn = 2 * max(unit.num_nodes for unit in task.units)  # during a step, two units at most may exceed a cell
        self._fewest = [_fewest_by_nodes(cell.racks, overdrawn) for cell in task.cells]
        self._nodes = [[0] * len(task.states) for _ in task.cells]
        self._weights = [state.weight for state in task.states]
        self._states = [[number for number in range(len(task.states)) if bits >> number & 1] for bits in task.states_on]

    def add(self, unit: int, cell: int, count: int) -> None:
        nodes, fewest_by_nodes = self._nodes[cell], self._fewest[cell]
        for state in self._states[unit]:
            was = nodes[state]
            nodes[state] = was + count
            self.use += self._weights[state] * (fewest_by_nodes[was + count] - fewest_by_nodes[was])


def _fewest_by_nodes(largest_first: tuple[int, ...], overdrawn: int) -> list[int]:
    """Return for each number of nodes, from 0 on, the fewest racks that hold them. `largest_first` has racks' sizes.

    The list has `overdrawn` more entries than the racks have nodes; these entries are the number of all racks.
    """
    racks = [number for number, size in enumerate(largest_first, 1) for _ in range(size)]
    return [0, *racks, *[len(largest_first)] * overdrawn]

"""A placement that changes step by step, with its counts kept up to date.

`quality.measure` counts from scratch, which costs as much as there are units and states; a step touches two cells.
"""

from collections import Counter

from planner.placement.task import Places, Split, Task

__all__ = ["Arrangement"]


class Arrangement:
    """A split, which `shift` changes."""

    def __init__(self, task: Task, split: Split) -> None:
        self.task = task
        self.at: list[dict[int, int]] = [{} for _ in task.units]  # unit -> cell -> its nodes there
        self.in_cell: list[dict[int, int]] = [{} for _ in task.cells]  # cell -> unit -> its nodes there
        self.free = list(task.sizes)
        lost = set(task.lost)
        self._leaves = _Touching(task.leaves, set()) if task.leaves else None
        self._racks = _RackUse(task, lost) if task.racks else None
        self._powers = _Touching(task.powers, lost) if task.powers else None
        self._touching = [each for each in (self._leaves, self._racks, self._powers) if each]
        self._kept = 0
        self._to_keep = sum(task.units[unit].num_nodes for unit in task.had_nodes)
        for unit, cells in enumerate(split):
            for cell, count in cells.items():
                self._add(unit, cell, count)

    def split(self) -> Split:
        """As it stands now."""
        return [dict(cells) for cells in self.at]

    def shift(self, unit: int, source: int, target: int, count: int) -> None:
        """`count` nodes of `unit` less in one cell, and more in the other; free nodes may be overdrawn in between."""
        self._add(unit, source, -count)
        self._add(unit, target, count)

    def counts(self) -> tuple[int, ...]:
        """Those of `quality.measure`."""
        worst = [each.worst()[0] for each in (self._racks, self._powers) if each and self.task.lost]
        return (*self._sums(), *worst, *self._moves())

    def _sums(self) -> list[int]:
        leaves = [self._leaves.total] if self._leaves else []
        return [*leaves, self._racks.use] if self._racks else leaves

    def _moves(self) -> list[int]:
        return [self._to_keep - self._kept] if self._to_keep else []

    def rating(self) -> tuple[int, ...]:
        """By which steps are judged: the counts, and how many racks and power domains are at their worst, then moves.

        A maximum says little before it falls; and moves are the price of a step, never its reason.
        """
        losses = [each.worst() for each in (self._racks, self._powers) if each and self.task.lost]
        return (*self._sums(), *(loss for loss, _ in losses), *(places for _, places in losses), *self._moves())

    def _add(self, unit: int, cell: int, count: int) -> None:
        here = self.at[unit]
        was = here.get(cell, 0)
        now = was + count
        self.free[cell] -= count
        if now:
            here[cell] = self.in_cell[cell][unit] = now
        else:
            del here[cell], self.in_cell[cell][unit]
        before = self.task.before[unit].get(cell, 0)
        self._kept += min(now, before) - min(was, before)
        for touching in self._touching:
            touching.add(unit, cell, count)


class _Touching:
    """How many nodes each unit has in each place, and which places lose most of `lost` units."""

    def __init__(self, places: Places, lost: set[int]) -> None:
        self.total = 0  # places that units touch, summed over units
        self.units: list[dict[int, int]] = [{} for _ in places.sizes]  # place -> unit -> its nodes there
        self._of_cell = places.of_cell
        self._lost = lost
        self._losses = [0] * len(places.sizes)  # place -> units of `lost` there
        self._places_with = Counter({0: len(places.sizes)})  # loss -> places

    def add(self, unit: int, cell: int, count: int) -> None:
        place = self._of_cell[cell]
        here = self.units[place]
        was = here.get(unit, 0)
        if was + count:
            here[unit] = was + count
        else:
            del here[unit]
        if not was or not was + count:
            self.changed(unit, place, 1 if count > 0 else -1)

    def changed(self, unit: int, place: int, by: int) -> None:
        """`unit` has come to `place`, or left it."""
        self.total += by
        if unit in self._lost:
            loss = self._losses[place]
            self._losses[place] = loss + by
            self._places_with[loss] -= 1
            self._places_with[loss + by] += 1

    def worst(self) -> tuple[int, int]:
        """The worst loss of a place, and in how many."""
        return max((loss, places) for loss, places in self._places_with.items() if places)

    def loss(self, place: int) -> int:
        """Units of `lost` in `place`."""
        return self._losses[place]


class _RackUse(_Touching):
    """Racks also count for as long as any of their units is on."""

    def __init__(self, task: Task, lost: set[int]) -> None:
        assert task.racks is not None
        super().__init__(task.racks, lost)
        self.use = 0
        self._on = task.on
        self._weights = [state.weight for state in task.states]
        self._weight_of: dict[int, int] = {}
        self._in_use = [0] * len(self.units)  # rack -> the states that it is used in, as bits

    def changed(self, unit: int, place: int, by: int) -> None:
        super().changed(unit, place, by)
        states = 0
        for other in self.units[place]:
            states |= self._on[other]
        self.use += self._weight(states) - self._weight(self._in_use[place])
        self._in_use[place] = states

    def _weight(self, states: int) -> int:
        if states not in self._weight_of:
            self._weight_of[states] = sum(weight for bit, weight in enumerate(self._weights) if states >> bit & 1)
        return self._weight_of[states]

"""The loads of a unit since it adopted its map, in two halves of `expert_load.live.every`: earlier and later. Pure.

Ranks count rows from their start on, so loads are differences of what they have counted. Counts begin anew when the
unit starts again or follows another map: loads of an earlier map never decide the next one.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from planner.facts.loads import Loads

__all__ = ["Halves", "MeasuredLoads"]

Halves = tuple[Loads, Loads]


@dataclass
class MeasuredLoads:
    """The row counts of a unit's ranks, read at the beginning and in the middle of a period of `every_s` seconds.

    `life` differs whenever counts must begin anew. Times are seconds of one clock.
    """

    every_s: float
    life: Hashable = None
    began: float = 0.0
    counts: tuple[Loads, ...] = ()

    def is_due(self, now: float, life: Hashable) -> bool:
        """Return whether the ranks' counts have to be read now."""
        return life != self.life or now - self.began >= len(self.counts) * self.every_s / 2

    def add(self, now: float, life: Hashable, counted: Loads) -> Halves | None:
        """Store the counts that the ranks have at `now`, if they are due.

        At the end of a period return both halves' loads, else None. If the unit's `life` has changed or a count has
        fallen, a new period begins.
        """
        if not self.is_due(now, life):
            return None
        if life != self.life or not self.counts or _is_less(counted, self.counts[-1]):
            self.life, self.began, self.counts = life, now, (counted,)
            return None
        begin, *middle = self.counts
        if not middle:
            self.counts = begin, counted
            return None
        self.began, self.counts = now, (counted,)
        return _difference(middle[0], begin), _difference(counted, middle[0])


def _is_less(counted: Loads, before: Loads) -> bool:
    """Return whether any count is smaller than `before`, as when ranks have started again."""
    return any(
        one < other
        for rows, others in zip(counted, before, strict=True)
        for one, other in zip(rows, others, strict=True)
    )


def _difference(counted: Loads, before: Loads) -> Loads:
    return tuple(
        tuple(one - other for one, other in zip(rows, others, strict=True))
        for rows, others in zip(counted, before, strict=True)
    )

"""Find how many units of one phase are on in each slot of a day, so that they serve it with the fewest unit-hours.

A unit also uses nodes while it warms up, before it serves, and while it drains, afterwards. So it stays on through a
gap that is no longer than both times together, and is off in every longer gap.

This is exact. The nth unit is needed in the slots that need n units or more. So each unit has a best day of its own,
and a gap of one unit lies inside a gap of the next: the nth unit is never off while a later one is on.

Different kinds of day follow each other in any order. So all kinds begin with the same number of units: the most that
the first slot of any kind needs.

Phases are independent, because their units share no nodes, so this handles one phase.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Switching:
    """How long switching a unit on or off takes, in slots."""

    warm_up: float = 0.0  # time for which a unit uses its nodes before it serves
    drain: float = 0.0  # time for which a unit uses its nodes after it served

    def switch_cost(self, before: int, after: int) -> float:
        """Return the unit-slots of warm-up and drain when the number of units changes from `before` to `after`."""
        return max(after - before, 0) * self.warm_up + max(before - after, 0) * self.drain


def count_unit_slots(on: Sequence[int], switching: Switching) -> float:
    """Return the unit-slots of a day with `on` units in each slot, warm-up and drain included.

    The day repeats: its first slot follows its last.
    """
    return sum(on) + sum(switching.switch_cost(on[index - 1], number) for index, number in enumerate(on))


def solve_day(needed: Sequence[int], switching: Switching) -> tuple[int, ...]:
    """Return the number of units on in each slot of a repeating day, at least `needed`, with the fewest unit-slots."""
    return _bridge_gaps(needed, switching)


def solve_days(needed: Sequence[Sequence[int]], switching: Switching) -> list[tuple[int, ...]]:
    """Return how many units are on, `[kind of day][slot]`: at least `needed`, in the fewest unit-slots.

    Kinds of day may follow each other in any order, so all begin with the same number of units, the least possible.
    """
    first = max(day[0] for day in needed)
    return [_bridge_gaps([first, *day[1:]], switching, over_midnight=False) for day in needed]


def _bridge_gaps(needed: Sequence[int], switching: Switching, *, over_midnight: bool = True) -> tuple[int, ...]:
    """Return `needed` with units on in gaps that are no longer than a warm-up and a drain.

    Gaps with the first slot are kept unless `over_midnight`.
    """
    on = list(needed)
    for level in sorted(set(needed)):
        for gap in _gaps(needed, level):
            is_short = len(gap) <= switching.warm_up + switching.drain + TOLERANCE
            if is_short and (over_midnight or 0 not in gap):
                on = [max(number, level) if slot in gap else number for slot, number in enumerate(on)]
    return tuple(on)


def _gaps(needed: Sequence[int], level: int) -> Iterator[set[int]]:
    """Yield each run of slots that need fewer than `level` units, around the day. Some slot must need that many."""
    start, gap = next(slot for slot, number in enumerate(needed) if number >= level), set[int]()
    for slot in [*range(start + 1, len(needed)), *range(start + 1)]:
        if needed[slot] < level:
            gap.add(slot)
        elif gap:
            yield gap
            gap = set()

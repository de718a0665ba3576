"""The fewest unit-hours that carry a day: how many units of one phase are on in each slot of it.

A unit has nodes before it serves, while it warms up, and after it, while it drains. So switching one off and on again
costs what both take; it stays on where that is longer than the gap. A number of units stays for a while before it
changes again.

Exact, by dynamic programming over (units on, slots since the last change). The day is a circle, so a place to begin is
needed. In the slot that needs most units, no more are on: to cut every slot at that number breaks no rule and costs
less. So the best day is one number throughout, or it begins where the run of slots around that one begins; each such
beginning is tried, the latest first, until what it costs at least is more than the best found.

It knows one phase: units of different phases have nodes of their own, and nothing else ties them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Costs = NDArray[np.float64]

__all__ = ["Switching", "fewest_unit_slots", "unit_slots"]


@dataclass(frozen=True)
class Switching:
    """What switching a unit takes, in slots."""

    warm_up: float = 0.0  # that its nodes are taken before it serves
    drain: float = 0.0  # and after it
    stay: int = 1  # that a number of units lasts at least

    def between(self, before: int, after: int) -> float:
        """Return the unit-slots that going from one number to another takes."""
        return max(after - before, 0) * self.warm_up + max(before - after, 0) * self.drain


def unit_slots(on: Sequence[int], switching: Switching) -> float:
    """Return what a day of these numbers costs, its last slot before its first."""
    return sum(on) + sum(switching.between(on[index - 1], number) for index, number in enumerate(on))


def fewest_unit_slots(needed: Sequence[int], switching: Switching) -> tuple[int, ...]:
    """Return the units that are on in each slot, at least those that are `needed`, for the least cost of all days."""
    peak = max(range(len(needed)), key=lambda slot: needed[slot])
    top = needed[peak]
    best: tuple[int, ...] = (top,) * len(needed)
    least, extra = unit_slots(best, switching), 0.0
    for back in range(len(needed)):
        start = (peak - back) % len(needed)
        extra += top - needed[start]
        if sum(needed) + extra >= least:
            break
        turned = [needed[(start + slot) % len(needed)] for slot in range(len(needed))]
        found = _from_the_top(turned, top, switching)
        if found is not None and found[0] < least - 1e-9:
            least = found[0]
            best = tuple(found[1][(slot - start) % len(needed)] for slot in range(len(needed)))
    return best


def _from_the_top(needed: Sequence[int], top: int, switching: Switching) -> tuple[float, list[int]] | None:
    """Return the best day whose first slot is the first of a run of `top`, or None where there is none."""
    import numpy as np  # who only validates should not wait for it

    ages = min(switching.stay, len(needed))
    numbers = np.arange(top + 1)
    rising = np.maximum(numbers[None, :] - numbers[:, None], 0)  # [from, to]
    switch = rising * switching.warm_up + rising.T * switching.drain
    np.fill_diagonal(switch, np.inf)  # another number, or no change
    costs = np.full((top + 1, ages), np.inf)
    costs[top, 0] = top
    came: list[Costs] = []
    for need in needed[1:]:
        changed = costs[:, -1][:, None] + switch
        stayed = np.full_like(costs, np.inf)
        stayed[:, 1:] = costs[:, :-1]
        stayed[:, -1] = np.minimum(stayed[:, -1], costs[:, -1])
        after = stayed + numbers[:, None]
        after[:, 0] = np.minimum(after[:, 0], changed.min(axis=0) + numbers)
        after[:need] = np.inf
        came.append(costs)
        costs = after
    ends = costs[:, -1] + switch[:, top]
    last = int(ends.argmin())
    if not np.isfinite(ends[last]):
        return None
    return float(ends[last]), _walked_back(came, costs, last, switch)


def _walked_back(came: "Sequence[Costs]", costs: "Costs", number: int, switch: "Costs") -> list[int]:
    """Return the numbers of all slots, from the last, which had `number` for long enough, to the first."""
    age, on = costs.shape[1] - 1, [number]
    for before in reversed(came):
        reached = costs[number, age] - number
        from_age = [each for each in {age - 1, age if age == costs.shape[1] - 1 else -1} if each >= 0]
        kept = next((each for each in from_age if _same(before[number, each], reached)), None)
        if kept is not None:
            age = kept
        else:
            number = int((before[:, -1] + switch[:, number]).argmin())
            age = costs.shape[1] - 1
        costs = before
        on.append(number)
    return on[::-1]


def _same(one: float, other: float) -> bool:
    return abs(one - other) < 1e-9

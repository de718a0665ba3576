"""Find how many units of one phase are on in each slot of a day, so that they serve it with the fewest unit-hours.

A unit also uses nodes while it warms up, before it serves, and while it drains, afterwards. Switching a unit off and on
costs both times, so a unit stays on if the gap is shorter than that. A number of units stays for `stay` slots before it
changes again.

The result is exact: dynamic programming over (units on, slots since the last change). The day is a circle, so the
program starts from the slot that needs most units. No more units than that are ever on, because cutting every slot at
that number adds no change and costs less. The age of a number of units is the slots since it last changed. The program
walks the day once for each possible age in the first slot, and must return to the same age. Ages are counted up to
`stay`: beyond it they make no difference.

Different kinds of day follow each other in any order. So all kinds begin with the same number of units, which lasts for
`stay` slots, and each ends so that any other may follow: the next day's first change comes at least `stay` slots after
the last change of the day before. That number is the least with which every kind of day can begin. Bisection finds it,
because one more unit all day breaks no rule. Given that number, each day is exact again.

Phases are independent, because their units share no nodes, so this handles one phase.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Costs = NDArray[np.float64]

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Switching:
    """The slots that switching a unit on or off takes, and the slots for which a number of units must stay."""

    warm_up: float = 0.0  # time for which a unit uses its nodes before it serves
    drain: float = 0.0  # time for which a unit uses its nodes after it served
    stay: int = 1  # shortest time between two changes of the number of units

    def switch_cost(self, before: int, after: int) -> float:
        """Return the unit-slots of warm-up and drain when the number of units changes from `before` to `after`."""
        return max(after - before, 0) * self.warm_up + max(before - after, 0) * self.drain


def count_unit_slots(on: Sequence[int], switching: Switching) -> float:
    """Return the unit-slots of a day with `on` units in each slot, warm-up and drain included.

    The day repeats: its first slot follows its last.
    """
    return sum(on) + sum(switching.switch_cost(on[index - 1], number) for index, number in enumerate(on))


def solve_day(needed: Sequence[int], switching: Switching) -> tuple[int, ...]:
    """Return how many units are on in each slot of a repeating day, `[slots]`: at least `needed`.

    Of all such days, the result has the fewest unit-slots.
    """
    num_slots = len(needed)
    peak = max(range(num_slots), key=lambda slot: needed[slot])
    top, turned = needed[peak], [*needed[peak:], *needed[:peak]]
    best, least = [top] * num_slots, float(top * num_slots)
    at_least = float(sum(needed))
    for age in range(min(switching.stay, num_slots)):
        at_least += top - turned[-age] if age else 0  # these slots have the same number as the peak
        if at_least >= least:
            break
        found = _best_from_peak(turned, age, switching)
        if found is not None and found[0] < least - TOLERANCE:
            least, best = found
    return tuple(best[(slot - peak) % num_slots] for slot in range(num_slots))


def solve_days(needed: Sequence[Sequence[int]], switching: Switching) -> list[tuple[int, ...]]:
    """Return the number of units on, [kind of day][slot]: at least `needed`, with the fewest unit-slots.

    Kinds of day may follow each other in any order, so all begin with the same number of units, the least possible.
    """
    most = max(map(max, needed))
    least = max(max(day[: switching.stay]) for day in needed)
    while least < most:
        middle = (least + most) // 2
        can_begin = all(_best_from_midnight(day, middle, switching) is not None for day in needed)
        least, most = (least, middle) if can_begin else (middle + 1, most)
    days = [_best_from_midnight(day, least, switching) for day in needed]
    return [tuple(day) for day in days if day is not None]


def _best_from_midnight(needed: Sequence[int], first: int, switching: Switching) -> list[int] | None:
    """Return how many units are on in each slot of the best day that begins with `first` units; None if there is none.

    The `first` units stay on for `stay` slots, and must be enough for these slots. Any kind of day can follow.
    """
    import numpy as np  # `validate` must not wait for it

    stay = min(switching.stay, len(needed))
    top = max(first, *needed)
    switch = _switch_costs(top, switching)
    history, costs = _least_costs(needed[stay:], (first, stay - 1), stay, switch)
    ends = np.full_like(costs, np.inf)
    ends[:, -1] = costs[:, -1] + switch[:, first]
    ends[first] = costs[first]
    number, age = (int(each) for each in np.unravel_index(ends.argmin(), ends.shape))
    if not np.isfinite(ends[number, age]):
        return None
    return [*[first] * (stay - 1), *_cheapest_day(history, costs, (number, age), switch)]


def _best_from_peak(needed: Sequence[int], start_age: int, switching: Switching) -> tuple[float, list[int]] | None:
    """Return (unit-slots, number of units on in each slot) of the best day that begins at the peak slot.

    In the first slot the number of units has the age `start_age`: the slots since it last changed. Returns None if
    no day leads back to that age.
    """
    import numpy as np  # as above

    top, ages = needed[0], min(switching.stay, len(needed))
    switch = _switch_costs(top, switching)
    history, costs = _least_costs(needed[1:], (top, start_age), ages, switch)
    ends = _closing_costs(costs, top, start_age, switch)
    number, age = (int(each) for each in np.unravel_index(ends.argmin(), ends.shape))
    if not np.isfinite(ends[number, age]):
        return None
    return float(ends[number, age]), _cheapest_day(history, costs, (number, age), switch)


def _least_costs(
    needed: Sequence[int], start: tuple[int, int], ages: int, switch: "Costs"
) -> tuple[list["Costs"], "Costs"]:
    """Return (the least cost of each state before each slot of `needed`, the same after the last slot).

    Costs are `[number, age]` in unit-slots: a state is a number of units and the age of that number. They include
    one slot in `start`, the state before the first slot of `needed`. A state that cannot be reached costs infinity.
    """
    import numpy as np  # as above

    numbers = np.arange(len(switch))
    costs = np.full((len(switch), ages), np.inf)
    costs[start] = start[0]
    history: list[Costs] = []
    for need in needed:
        changed = costs[:, -1][:, None] + switch
        after = np.full_like(costs, np.inf)
        after[:, 1:] = costs[:, :-1]
        after[:, -1] = np.minimum(after[:, -1], costs[:, -1])
        after[:, 0] = np.minimum(after[:, 0], changed.min(axis=0))
        after += numbers[:, None]
        after[:need] = np.inf
        history.append(costs)
        costs = after
    return history, costs


def _switch_costs(top: int, switching: Switching) -> "Costs":
    """Return the cost `[from, to]` of each change of the number of units, in unit-slots.

    The diagonal is infinite, because `_least_costs` has another formula for a number that does not change.
    """
    import numpy as np  # as above

    numbers = np.arange(top + 1)
    rising = np.maximum(numbers[None, :] - numbers[:, None], 0)
    costs: Costs = rising * switching.warm_up + rising.T * switching.drain
    np.fill_diagonal(costs, np.inf)
    return costs


def _closing_costs(costs: "Costs", top: int, start_age: int, switch: "Costs") -> "Costs":
    """Return the cost of a day that ends in each state, `[number, age]`, and goes back to its first state.

    The first state is `top` units of age `start_age`. The cost is infinite for a last state
    that the first state cannot follow.
    """
    import numpy as np  # as above

    last = costs.shape[1] - 1
    ends = np.full_like(costs, np.inf)
    if start_age == 0:
        ends[:, last] = costs[:, last] + switch[:, top]
    if start_age > 0:
        ends[top, start_age - 1] = costs[top, start_age - 1]
    if start_age == last:
        ends[top, last] = costs[top, last]
    return ends


def _cheapest_day(history: "Sequence[Costs]", costs: "Costs", state: tuple[int, int], switch: "Costs") -> list[int]:
    """Return the number of units on in each slot of the cheapest day that ends in `state` (number, age), `[slots]`."""
    (number, age), last = state, costs.shape[1] - 1
    on = [number]
    for before in reversed(history):
        reached = costs[number, age] - number
        ages = {age - 1, last} if age == last else {age - 1}
        kept = next((each for each in ages if each >= 0 and _are_equal(before[number, each], reached)), None)
        if kept is not None:
            age = kept
        else:
            number = int((before[:, -1] + switch[:, number]).argmin())
            age = last
        costs = before
        on.append(number)
    return on[::-1]


def _are_equal(one: float, other: float) -> bool:
    return abs(one - other) < TOLERANCE

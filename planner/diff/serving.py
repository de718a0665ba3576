"""The laws of a change: how many units of a phase serve at the least during it, and how long it takes.

    one by one    served = units on that are kept, and units that go last while others change
                           + (units that take turns, less one if no other unit stands in for it)
                           at most the units that stay
    at once       served = units on that are kept
    in pairs      served = one, if the first unit that changes leaves an old one: while KV formats differ, one unit of
                           each phase serves alone

    seconds       units that start or change together + turns x (drain + start) + the drain of units that leave

`drain` is that of the pods that end, so the former plan's. `rollout.py` asks both laws of two plans before the change.
The controller asks them of the cluster when the change begins, as the promise that it holds itself to.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal

Turns = Literal["none", "now", "with_room"]  # all at once, or one by one, with or without a stand-in


@dataclass(frozen=True)
class PhaseUnits:
    """How many units of a phase are on when a change begins, and what becomes of them."""

    on: int
    kept: int  # the change leaves them alone
    in_turn: int  # they can change one by one
    go_last: int  # they leave the plan, once all others have changed
    stay: int  # they do not leave the plan


def least_serving(units: PhaseUnits, turns: Turns, *, is_replaced: bool, all_replaced: bool, in_pairs: bool) -> int:
    """Return how many of a phase's units serve at the least.

    `is_replaced` says whether another unit stands in for the one that changes, `all_replaced` whether one does in every
    phase, `in_pairs` whether KV formats differ and first one unit of each phase changes.
    """
    lacks_one = turns == "now" and not is_replaced
    if in_pairs:
        waits = turns == "with_room" and not all_replaced
        return units.on if waits else min(units.on - lacks_one, 1)
    if turns == "none":
        return units.kept
    return min(units.stay, units.kept + units.go_last + units.in_turn - (lacks_one and units.in_turn > 0))


def change_s(together_s: float, num_turns: int, drain_s: float, start_s: float, *, drains_last: bool) -> int:
    """Return the seconds, rounded up, that a change takes whose parts come one after another.

    Some units start or change together, in `together_s`. Then come `num_turns`, each a drain and a start. With
    `drains_last` units that leave the plan drain after that.
    """
    return ceil(together_s + num_turns * (drain_s + start_s) + drains_last * drain_s)

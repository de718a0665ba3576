"""A rank that holds up its unit: one slow GPU of 144 slows them all.

Ranks say how long a step takes by their own work. One is a straggler when it takes far longer than its peers do. It is
named and not ended: it still computes, and whether its machine is to be replaced is for people to decide.
"""

from collections.abc import Sequence
from statistics import median

__all__ = ["LEAST_US", "SLOW", "find_straggler"]

SLOW = 1.5  # assumed: requests are spread less evenly than that only for moments
LEAST_US = 5_000  # assumed: differences of a step's milliseconds are those of one request more


def find_straggler(own_us: Sequence[int]) -> tuple[int, float] | None:
    """Return the number of the slow rank and how many times longer it takes than its peers; None where none does.

    `own_us` has each rank's own microseconds of a step, 0 of one that has not said any.
    """
    if len(own_us) < 2 or not all(own_us):
        return None
    slowest = max(range(len(own_us)), key=own_us.__getitem__)
    of_peers = median([*own_us[:slowest], *own_us[slowest + 1 :]])
    if own_us[slowest] < SLOW * of_peers or own_us[slowest] - of_peers < LEAST_US:
        return None
    return slowest, own_us[slowest] / of_peers

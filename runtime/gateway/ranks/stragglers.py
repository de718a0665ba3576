"""Find a rank that holds up its unit: one slow GPU of 144 slows down all of them.

Ranks report how long their own work in a step takes. A rank is a straggler if it takes far longer than its peers. It is
reported but not ended: it still computes, and people decide whether to replace its machine.

How long it must be slow is decided elsewhere: `worker/step_times.py` smooths what a rank reports,
`stacks/controller/stragglers.py` says when its unit is used last, and `docs/prometheus-rule.yaml` when to alert.
"""

from collections.abc import Sequence
from statistics import median

__all__ = ["MIN_DIFFERENCE_US", "SLOW", "find_straggler"]

SLOW = 1.5  # assumed: only for moments are requests spread so unevenly
MIN_DIFFERENCE_US = 5_000  # assumed: smaller differences come from one request more or less


def find_straggler(own_us: Sequence[int]) -> tuple[int, float] | None:
    """Return (the number of the slow rank, how many times longer it takes than its peers); None if no rank is slow.

    `own_us` has each rank's own microseconds in a step, or 0 for a rank that has reported none.
    """
    if len(own_us) < 2 or not all(own_us):
        return None
    slowest = max(range(len(own_us)), key=own_us.__getitem__)
    peers_us = median([*own_us[:slowest], *own_us[slowest + 1 :]])
    if own_us[slowest] < SLOW * peers_us or own_us[slowest] - peers_us < MIN_DIFFERENCE_US:
        return None
    return slowest, own_us[slowest] / peers_us

"""What a day asks of a phase, counted in its units: 2.4 where two are too few and three are enough.

    units that are asked for = demand of the entry / what one unit carries

Entries of a profile are equally long parts of the day, an hour each or less; demand is even within one. What a unit
carries is known in one of two ways. Units that stand in the spec just carry the busiest entry of all days, because
their user counted them so. Units that speed decided carry what they are predicted to make under the SLO.
"""

from collections.abc import Sequence
from math import ceil, fsum

from planner.facts.day import DAY_S

__all__ = ["units_at_rate", "units_of_busiest", "whole_units"]

ROUNDING = 1e-9


def units_of_busiest(profile: Sequence[float], units: float, carried: float | None = None) -> tuple[float, ...]:
    """Return the units that each entry asks for, where `units` just carry `carried`, else the busiest entry.

    Some entry is above 0.
    """
    most = carried or max(profile)
    return tuple(units * demand / most for demand in profile)


def units_at_rate(profile: Sequence[float], tokens_per_day: float, tokens_per_s: float) -> tuple[float, ...]:
    """Return the units that each entry asks for, where one unit makes `tokens_per_s`."""
    total, entry_s = fsum(profile) or 1.0, DAY_S / len(profile)
    return tuple(tokens_per_day * demand / total / entry_s / tokens_per_s for demand in profile)


def whole_units(asked: float, floor: int) -> int:
    """Return how many units carry what is `asked` for, counted in units; at least the `floor`."""
    return max(floor, ceil(asked - ROUNDING))

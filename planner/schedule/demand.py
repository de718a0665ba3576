"""The demand of a day on a phase, in units of that phase: 2.4 means that two are too few and three are enough.

    demand in units = demand of the entry / capacity of one unit

The entries of a profile are equally long parts of the day, an hour each or less; demand is constant within one. There
are two sources of a unit's capacity. If the spec gives the number of units, these just serve the busiest entry of all
days, because the user chose the number for it. If speed decided the number, a unit serves its predicted rate under the
SLO.
"""

from collections.abc import Sequence
from math import ceil, fsum

from planner.facts.day import DAY_S

__all__ = ["demand_from_rate", "demand_from_units", "round_up_units"]

ROUNDING = 1e-9


def demand_from_units(profile: Sequence[float], units: float, carried: float | None = None) -> tuple[float, ...]:
    """Return the demand of each entry in units, if `units` just serve a demand of `carried`, by default the highest.

    Some entry must be above 0.
    """
    most = carried or max(profile)
    return tuple(units * demand / most for demand in profile)


def demand_from_rate(profile: Sequence[float], tokens_per_day: float, tokens_per_s: float) -> tuple[float, ...]:
    """Return the demand of each entry in units, if one unit makes `tokens_per_s`."""
    total, entry_s = fsum(profile) or 1.0, DAY_S / len(profile)
    return tuple(tokens_per_day * demand / total / entry_s / tokens_per_s for demand in profile)


def round_up_units(asked: float, floor: int) -> int:
    """Return the whole number of units for a demand of `asked` units, at least `floor`."""
    return max(floor, ceil(asked - ROUNDING))

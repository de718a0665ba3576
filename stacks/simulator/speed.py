"""How a simulation picks a speed from the predicted range.

A predicted speed is a range. `low` is the slowest that the evidence allows, `high` the fastest.
"""

from typing import Literal

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Case

__all__ = ["LEVELS", "Level", "known_case", "slowdown"]

Level = Literal["low", "mid", "high"]
LEVELS: tuple[Level, ...] = ("low", "mid", "high")


def known_case(outlook: PhaseOutlook) -> Case:
    """Return the operating point that a phase's speed was predicted for, which must exist."""
    assert outlook.case is not None
    return outlook.case


def slowdown(outlook: PhaseOutlook, level: Level) -> float:
    """Return the ratio of a step's time at `level` to its expected time: above 1 for `low`, below 1 for `high`."""
    assert outlook.prediction is not None
    rate = outlook.prediction.tokens_per_s_per_gpu
    return rate.mid / float(getattr(rate, level))

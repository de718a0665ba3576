"""The timetable that the controller follows: which units are on when, and how long they warm up and drain.

It is a part of the planned day (`schedule.py`), without freed nodes and stages. It can be computed from a spec and its
units alone, and so from a plan's JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.layout.unit import Unit
from planner.schedule.schedule import Days, OtherDays, plan_steps, replace_windows
from planner.spec.schema import Spec


@dataclass(frozen=True)
class Timetable(Days):
    """The states of all days, and the seconds that a unit takes to warm up and to drain."""

    warm_up_s: float
    drain_s: float
    notice_s: float = 0.0  # how long before a unit takes its nodes other work on them is warned


def timetable_of(spec: Spec, units: Sequence[Unit]) -> Timetable | None:
    """Return the timetable of the placed units; None if all are always on."""
    day = spec.schedule
    if day is None:
        return None
    others = tuple(
        OtherDays(tuple(other.days), plan_steps(spec, replace_windows(day, other), units)) for other in day.other_days
    )
    steps, notice_s = plan_steps(spec, day, units), day.start.notice
    return Timetable(day.timezone, steps, day.warm_up, day.drain, notice_s, other_days=others)

"""The part of a plan's day that the controller follows: which units are on when, and their warm-up and drain.

It has less than the planned day (`schedule.py`): no freed nodes, no stages. It follows from a spec and its units, so it
can be read from a plan's JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.layout.unit import Unit
from planner.schedule.schedule import Days, OtherDays, plan_steps, replace_windows
from planner.spec.schema import Spec

__all__ = ["Timetable", "timetable_of"]


@dataclass(frozen=True)
class Timetable(Days):
    """The states of all days, and the seconds in which a unit warms up and drains.

    Other work on the nodes of a unit gets notice `notice_s` before the unit takes them.
    """

    warm_up_s: float
    drain_s: float
    notice_s: float = 0.0


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

"""What somebody who follows a plan's day has to know: which units are on when, and how long ways in and out take.

It is less than the day that was planned (`schedule.py`): no nodes that become free, no stages. A spec and its units say
all of it, so whoever reads a plan's JSON has it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.layout.unit import Unit
from planner.schedule.schedule import Days, OtherDays, steps_of, with_windows_of
from planner.spec.schema import Spec

__all__ = ["Timetable", "timetable_of"]


@dataclass(frozen=True)
class Timetable(Days):
    """The states of all days, and how many seconds of its clock a unit warms up and drains.

    Whoever uses the nodes of a unit that is off is told `notice_s` before they are taken.
    """

    warm_up_s: float
    drain_s: float
    notice_s: float = 0.0


def timetable_of(spec: Spec, units: Sequence[Unit]) -> Timetable | None:
    """Return what `spec` asks of its placed units over a day; None where all are always on."""
    day = spec.schedule
    if day is None:
        return None
    others = tuple(
        OtherDays(tuple(other.days), steps_of(spec, with_windows_of(day, other), units)) for other in day.other_days
    )
    steps, notice_s = steps_of(spec, day, units), day.start.notice
    return Timetable(day.timezone, steps, day.warm_up, day.drain, notice_s, other_days=others)

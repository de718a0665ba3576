"""What somebody who follows a plan's day has to know: which units are on when, and how long ways in and out take.

It is less than the day that was planned (`schedule.py`): no nodes that become free, no stages. A spec and its units say
all of it, so whoever reads a plan's JSON has it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.layout.unit import Unit
from planner.schedule.schedule import Step, steps_of, switches_units
from planner.spec.schema import Spec

__all__ = ["Timetable", "timetable_of"]


@dataclass(frozen=True)
class Timetable:
    """The states of a day, and how many seconds of its clock a unit warms up and drains.

    Whoever uses the nodes of a unit that is off is told `notice_s` before they are taken.
    """

    timezone: str
    steps: tuple[Step, ...]
    warm_up_s: float
    drain_s: float
    notice_s: float = 0.0

    @property
    def switches(self) -> bool:
        """True if some unit is off at some time."""
        return switches_units(step.units for step in self.steps)


def timetable_of(spec: Spec, units: Sequence[Unit]) -> Timetable | None:
    """Return what `spec` asks of its placed units over a day; None where all are always on."""
    day = spec.schedule
    if day is None:
        return None
    return Timetable(day.timezone, steps_of(spec, day, units), day.warm_up, day.drain, day.start.notice)

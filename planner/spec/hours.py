"""How long the windows of a schedule last, and for how long a unit is on."""

from planner.facts.day import DAY_MINUTES, minute_of
from planner.facts.terms import Phase
from planner.spec.schedule import ScheduleSpec

__all__ = ["active_minutes", "window_minutes", "window_starts"]


def active_minutes(schedule: ScheduleSpec | None, phase: Phase, index: int) -> int:
    """Minutes of a day for which unit `index` of `phase` is on."""
    if schedule is None:
        return DAY_MINUTES
    lengths = zip(schedule.windows, window_minutes(schedule), strict=True)
    return sum(length for window, length in lengths if index < window.num_units(phase))


def window_minutes(schedule: ScheduleSpec) -> list[int]:
    """How long each window lasts, in the order of the spec; times differ, by a rule."""
    starts = window_starts(schedule)
    ordered = sorted(starts)
    following = dict(zip(ordered, [*ordered[1:], ordered[0] + DAY_MINUTES], strict=True))
    return [following[start] - start for start in starts]


def window_starts(schedule: ScheduleSpec) -> list[int]:
    """Return the minute of the day at which each window starts, in the order of the spec."""
    return [minute_of(window.at) for window in schedule.windows]

"""The lengths of a schedule's windows, and how long a unit is on."""

from collections.abc import Iterator, Sequence

from planner.facts.calendar import entry_of, week_around
from planner.facts.day import DAY_MINUTES, minute_of
from planner.facts.terms import Phase
from planner.spec.schedule import ScheduleSpec, WindowSpec


def weeks_of(schedule: ScheduleSpec) -> Iterator[tuple[Sequence[WindowSpec], ...]]:
    """Yield cycles of days, each day as its windows: the ordinary day alone, and the week around each special day."""
    yield (schedule.windows,)
    others = [other.days for other in schedule.other_days]
    for day in (day for days in others for day in days):
        entries = (entry_of(each, others) for each in week_around(day))
        yield tuple(schedule.windows if entry is None else schedule.other_days[entry].windows for entry in entries)


def active_minutes(schedule: ScheduleSpec | None, phase: Phase, index: int) -> int:
    """Return the minutes of an ordinary day for which unit `index` of `phase` is on."""
    if schedule is None:
        return DAY_MINUTES
    lengths = zip(schedule.windows, window_minutes(schedule), strict=True)
    return sum(length for window, length in lengths if index < window.num_units(phase))


def window_minutes(schedule: ScheduleSpec) -> list[int]:
    """Return the minutes that each window lasts, in the order of the spec. A rule ensures that starts differ."""
    starts = window_starts(schedule)
    ordered = sorted(starts)
    following = dict(zip(ordered, [*ordered[1:], ordered[0] + DAY_MINUTES], strict=True))
    return [following[start] - start for start in starts]


def window_starts(schedule: ScheduleSpec) -> list[int]:
    """Return the minute of the day at which each window starts, in the order of the spec."""
    return [minute_of(window.at) for window in schedule.windows]

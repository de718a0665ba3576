"""The day of a plan on real dates: which units are on at an instant, and when that changes.

A schedule's times are what clocks show in its time zone, and whoever follows it counts seconds of UTC. The two differ
by hours, and on two days of the year by another hour than the day before:

- Clocks that go forward skip an hour. Windows that would begin in it begin when it would have begun.
- Clocks that go back show an hour twice. In both hours as many units of each phase are on as in the busiest state of
  that hour: nothing stops in order to start again, and both times the demand of the hour is carried.

Nothing here asks what time it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Protocol

from planner.facts.calendar import entry_of
from planner.facts.day import DAY_S, minute_of
from planner.facts.wall_clock import dates_between, instants_of, offset_at, wall_time
from planner.schedule.schedule import OtherDays, Step, all_steps

__all__ = ["Change", "Day", "changes_between", "state_at", "steps_on", "units_at"]


class Day(Protocol):
    """A planned day, or its timetable."""

    @property
    def timezone(self) -> str:
        """The IANA's name of the place whose clocks it goes by."""
        ...

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its states."""
        ...

    @property
    def other_days(self) -> tuple[OtherDays, ...]:
        """The states of weekdays and dates that have others."""
        ...


@dataclass(frozen=True)
class Change:
    """The units that are on from an instant on, and which of them were off before, or are off now."""

    instant: int  # seconds since 1970-01-01 00:00 UTC
    units: tuple[str, ...]
    starts: tuple[str, ...]
    stops: tuple[str, ...]


def units_at(day: Day, instant: int) -> tuple[str, ...]:
    """Return the units that are on at an instant, in the order of the day's busiest steps."""
    wall = wall_time(instant, day.timezone)
    steps, repeated = steps_on(day, wall.date), _repeated(wall.date, day.timezone)
    if repeated is None or not repeated[0] <= wall.minute < repeated[1]:
        return _step_at(steps, wall.minute).units
    first, end = repeated
    begun = [step for step in steps if first < minute_of(step.at) < end]
    on = {unit for step in (_step_at(steps, first), *begun) for unit in step.units}
    return tuple(unit for unit in _all_units(all_steps(day.steps, day.other_days)) if unit in on)


def state_at(day: Day, instant: int) -> Step:
    """Return the step that clocks show at an instant."""
    wall = wall_time(instant, day.timezone)
    return _step_at(steps_on(day, wall.date), wall.minute)


def steps_on(day: Day, date: str) -> tuple[Step, ...]:
    """Return the states of a date."""
    entry = entry_of(date, [other.days for other in day.other_days])
    return day.steps if entry is None else day.other_days[entry].steps


def changes_between(day: Day, begin: int, end: int) -> tuple[Change, ...]:
    """Return what changes after `begin` and until `end`, in order."""
    found, before = [], units_at(day, begin)
    for instant in _edges(day, begin, end):
        units = units_at(day, instant)
        starts = tuple(unit for unit in units if unit not in before)
        stops = tuple(unit for unit in reversed(before) if unit not in units)
        if starts or stops:
            found.append(Change(instant, units, starts, stops))
        before = units
    return tuple(found)


def _edges(day: Day, begin: int, end: int) -> list[int]:
    """Return every instant at which a window or a date begins, or clocks change."""
    zone, edges = day.timezone, set()
    for each in dates_between(begin, end, zone):
        minutes = {0, *(minute_of(step.at) for step in steps_on(day, each))}
        edges |= {instant for minute in minutes for instant in instants_of(each, minute, zone)}
        change = _clock_change(each, zone)
        if change is not None:
            back = max(offset_at(change - 1, zone) - offset_at(change, zone), 0)
            edges |= {change - back, change, change + back}
    return sorted(each for each in edges if begin < each <= end)


@cache
def _repeated(day: str, zone: str) -> tuple[int, int] | None:
    """Return the minutes of a date, first and last + 1, that clocks show twice; None where they show none twice."""
    change = _clock_change(day, zone)
    if change is None or offset_at(change, zone) > offset_at(change - 1, zone):
        return None
    first = wall_time(change, zone).minute
    return first, first + (offset_at(change - 1, zone) - offset_at(change, zone)) // 60


@cache
def _clock_change(day: str, zone: str) -> int | None:
    """Return the first instant of another offset on a date, where clocks change on it."""
    noon = instants_of(day, 12 * 60, zone)[0]
    low, high = noon - DAY_S // 2 - 7200, noon + DAY_S // 2
    if offset_at(low, zone) == offset_at(high, zone):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset_at(middle, zone) == offset_at(low, zone) else (low, middle)
    return high if wall_time(high, zone).date == day else None


def _step_at(steps: Sequence[Step], minute: int) -> Step:
    """Return the step that holds at a minute: before the first one it is the last."""
    ordered = sorted(steps, key=lambda step: step.at)
    begun = [step for step in ordered if minute_of(step.at) <= minute]
    return (begun or ordered)[-1]


def _all_units(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return every unit once: phase by phase, each in the order of its numbers."""
    largest = (max((step.units_of(phase) for step in steps), key=len) for phase in steps[0].num_units)
    return tuple(chain.from_iterable(largest))

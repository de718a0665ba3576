"""Apply a plan's day to real dates: which units are on at an instant, and when that changes.

A schedule's times are wall-clock times of its time zone, while the controller counts seconds of UTC. The difference
between the two changes twice a year:

- When clocks go forward, they skip an hour. Windows that would begin in the skipped hour begin at its start.
- When clocks go back, they show an hour twice. Both times each phase has as many units on as in the busiest state of
  that hour. So no unit stops only to start again, and the hour's demand is served both times.

A day may have a state for each of its 1,440 minutes, and the controller looks days ahead every few seconds. So the
states of a date are sorted once per call.

This module never reads a clock.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from planner.facts.calendar import dates_between, instants_of, offset_at, wall_time
from planner.facts.day import DAY_MINUTES, DAY_S, MINUTE_S, minute_of
from planner.schedule.schedule import Step, Timetable

DATES_KEPT = 1000  # dates in a cache. Assumed: about three years of one zone; a rehearsal passes a date per second


@dataclass(frozen=True)
class Change:
    """A change of the units that are on: its instant, the units that start and stop, and all units on from then."""

    instant: int  # seconds since 1970-01-01 00:00 UTC
    units: tuple[str, ...]
    starts: tuple[str, ...]
    stops: tuple[str, ...]


def units_at(days: Timetable, instant: int) -> tuple[str, ...]:
    """Return the names of the units that are on at an instant, in seconds since 1970-01-01 00:00 UTC.

    The names are ordered phase by phase, and by number within a phase.
    """
    return _Calendar(days).units_at(instant)


def state_at(days: Timetable, instant: int) -> Step:
    """Return the step of `days` that is in force at an instant (seconds since 1970), by the clocks of its time zone."""
    wall = wall_time(instant, days.timezone)
    return _States.from_steps(days.steps_on(wall.date)).at(wall.minute)


def changes_between(days: Timetable, begin: int, end: int) -> tuple[Change, ...]:
    """Return all changes of the units that are on, after the instant `begin` and up to `end`, in order."""
    calendar = _Calendar(days)
    found, before = [], calendar.units_at(begin)
    for instant in calendar.edges(begin, end):
        units = calendar.units_at(instant)
        if units == before:
            continue
        was, now = set(before), set(units)
        starts = tuple(unit for unit in units if unit not in was)
        stops = tuple(unit for unit in reversed(before) if unit not in now)
        if starts or stops:
            found.append(Change(instant, units, starts, stops))
        before = units
    return tuple(found)


@dataclass(frozen=True)
class _States:
    """The steps of one date in order of time, and the minute at which each step begins."""

    minutes: tuple[int, ...]
    steps: tuple[Step, ...]

    @classmethod
    def from_steps(cls, steps: Sequence[Step]) -> "_States":
        """Return the object for a date that has these steps, which may be in any order."""
        ordered = tuple(sorted(steps, key=lambda step: step.at))
        return cls(tuple(minute_of(step.at) for step in ordered), ordered)

    def at(self, minute: int) -> Step:
        """Return the step in force at a minute of the day. Before the first step begins, the last step is in force."""
        return self.steps[bisect_right(self.minutes, minute) - 1]

    def within(self, first: int, end: int) -> tuple[Step, ...]:
        """Return every step that is in force at some minute from `first` to `end` - 1."""
        begun = self.steps[bisect_right(self.minutes, first) : bisect_left(self.minutes, end)]
        return (self.at(first), *begun)


class _Calendar:
    """The states of each date of a schedule, sorted once and then read for many instants."""

    def __init__(self, days: Timetable) -> None:
        self._days, self._zone = days, days.timezone
        self._states: dict[str, _States] = {}

    def units_at(self, instant: int) -> tuple[str, ...]:
        """Return the names of the units that are on at an instant.

        In an hour that clocks show twice, every unit is on that some part of the hour needs.
        """
        wall = wall_time(instant, self._zone)
        states, repeated = self._states_on(wall.date), _repeated_minutes(wall.date, self._zone)
        if repeated is None or not repeated[0] <= wall.minute < repeated[1]:
            return states.at(wall.minute).units
        on = {unit for step in states.within(*repeated) for unit in step.units}
        return tuple(unit for unit in self._all_units if unit in on)

    def edges(self, begin: int, end: int) -> list[int]:
        """Return every instant after `begin` up to `end` at which a window or a date begins, or clocks change."""
        edges: set[int] = set()
        for each in dates_between(begin, end, self._zone):
            edges |= _instants_of({0, *self._states_on(each).minutes}, each, self._zone)
            change = _clock_change(each, self._zone)
            if change is not None:
                back = max(offset_at(change - 1, self._zone) - offset_at(change, self._zone), 0)
                edges |= {change - back, change, change + back}
        return sorted(each for each in edges if begin < each <= end)

    def _states_on(self, date: str) -> _States:
        if date not in self._states:
            self._states[date] = _States.from_steps(self._days.steps_on(date))
        return self._states[date]

    @cached_property
    def _all_units(self) -> tuple[str, ...]:
        """All units, phase by phase, in the order of their numbers."""
        steps = self._days.all_steps
        largest = (max((step.units_of(phase) for step in steps), key=len) for phase in steps[0].num_units)
        return tuple(chain.from_iterable(largest))


def _instants_of(minutes: Collection[int], date: str, zone: str) -> set[int]:
    """Return the instants at which clocks show one of `minutes` of a date: none, one or two for each minute."""
    first, last = instants_of(date, 0, zone), instants_of(date, DAY_MINUTES - 1, zone)
    if len(first) == len(last) == 1 and last[0] - first[0] == (DAY_MINUTES - 1) * MINUTE_S:
        return {first[0] + minute * MINUTE_S for minute in minutes}
    return {instant for minute in minutes for instant in instants_of(date, minute, zone)}


@lru_cache(maxsize=DATES_KEPT)
def _repeated_minutes(day: str, zone: str) -> tuple[int, int] | None:
    """Return the minutes that clocks show twice on a date, as (first, last + 1); None if there are no such minutes."""
    change = _clock_change(day, zone)
    if change is None or offset_at(change, zone) > offset_at(change - 1, zone):
        return None
    first = wall_time(change, zone).minute
    return first, first + (offset_at(change - 1, zone) - offset_at(change, zone)) // 60


@lru_cache(maxsize=DATES_KEPT)
def _clock_change(day: str, zone: str) -> int | None:
    """Return the instant at which the zone's clocks change on a date; None if they do not change."""
    noon = instants_of(day, 12 * 60, zone)[0]
    low, high = noon - DAY_S // 2 - 7200, noon + DAY_S // 2
    if offset_at(low, zone) == offset_at(high, zone):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset_at(middle, zone) == offset_at(low, zone) else (low, middle)
    return high if wall_time(high, zone).date == day else None

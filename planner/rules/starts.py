"""Check that units are ready when their window begins, and find the longest start of units in a day.

A unit that is late leaves the day short of capacity, so the spec is refused before placement.
"""

from collections.abc import Iterator, Sequence
from math import ceil, inf

from planner.facts.day import DAY_MINUTES, hh_mm, minute_of
from planner.facts.quantities import gb
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.problems.fix import Fix, nearest
from planner.schedule.starts import Start, StartTimes, Window, least_warm_up, loading_times, starts_of
from planner.spec.schedule import ScheduleSpec, WindowSpec, weeks_of

LONGEST_S = 6 * 3600.0  # the most that schedule.warm_up accepts

Starts = Sequence[tuple[Sequence[Start], int]]  # the starts of each recurring cycle of days, and its number of days


def find_late_starts(schedule: ScheduleSpec, times: StartTimes) -> Iterator[Finding]:
    """Yield a finding with the sufficient warm-up, if some start takes longer than the schedule's warm-up."""
    starts = _all_starts(schedule, times)
    least = max(least_warm_up(each, times, num_days) for each, num_days in starts)
    if any(each for each, _ in starts) and least > schedule.warm_up:
        yield _late_start(schedule, starts, times, least)


def _all_starts(schedule: ScheduleSpec, times: StartTimes) -> Starts:
    """Return (starts of units, number of days) for an ordinary day, and for the week around each special day."""
    return [(starts_of(_windows(week, tuple(times.units)), times), len(week)) for week in weeks_of(schedule)]


def _windows(week: Sequence[Sequence[WindowSpec]], phases: Sequence[Phase]) -> list[Window]:
    """Return the windows of consecutive days in order.

    At midnight each day begins with the units of its own last window.
    """
    found = []
    for number, day in enumerate(week):
        ordered = sorted(day, key=lambda window: window.at)
        times = [0, *(minute_of(window.at) for window in ordered)]
        for minute, window in zip(times, [ordered[-1], *ordered], strict=True):
            found.append(Window(number * DAY_MINUTES + minute, {phase: window.num_units(phase) for phase in phases}))
    return found


def _late_start(schedule: ScheduleSpec, starts: Starts, times: StartTimes, least: float) -> Finding:
    worst, loading = _longest_start(starts)
    takes = _to_spec_time(least) if least < inf else "a day"
    rule = f"S763 must be at least {takes}, as long as the start at {_time_in_words(worst)} takes"
    fix: Fix | str = nearest(takes)
    if least > LONGEST_S:
        rule += ", and at most 6h"
        fix = "shorten the stages, let fewer units start at once, or read faster"
    reason = _stages_in_words(worst, loading, times)
    return Finding("schedule.warm_up", _to_spec_time(schedule.warm_up), rule, reason, fix)


def _longest_start(starts: Starts) -> tuple[Start, float]:
    pairs = (pair for some, days in starts for pair in zip(some, loading_times(some, days), strict=True))
    return max(pairs, key=lambda each: each[1])


def _stages_in_words(start: Start, loading: float, times: StartTimes) -> str:
    """Return a clause on how long a start of several units takes, stage by stage."""
    shared, takes = start.bytes_per_s / 1e9, f"{loading:,.0f} s" if loading < inf else "more than a day"
    who = " and ".join(f"{number} {phase} unit{'' if number == 1 else 's'}" for phase, number in start.units.items())
    return (
        f"loading the weights of {who} ({gb(start.num_bytes)}) takes {takes}, with at most {shared:,g} GB/s"
        f" from the storage and {times.node_bytes_per_s / 1e9:g} GB/s per node, and all other stages take"
        f" {times.fixed_s:,.0f} s"
    )


def _time_in_words(start: Start) -> str:
    return hh_mm(start.minute)


def _to_spec_time(seconds: float) -> str:
    """Return a time in the form of a spec, rounded up to whole seconds, at least `1s`."""
    return f"{max(ceil(seconds), 1)}s"

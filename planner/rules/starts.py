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


def find_late_starts(schedule: ScheduleSpec, times: StartTimes, *, is_auto: bool) -> Iterator[Finding]:
    """Yield a finding with the sufficient warm-up, if some start takes longer than the schedule's warm-up.

    An auto warm-up is always long enough, so only starts longer than LONGEST_S are reported for it.
    """
    starts = _all_starts(schedule, times)
    least = _least_warm_up(starts, times)
    if any(each for each, _ in starts) and least > (LONGEST_S if is_auto else schedule.warm_up):
        yield _late_start(schedule, starts, times, least)


def required_warm_up(schedule: ScheduleSpec, times: StartTimes) -> float:
    """Return the shortest warm-up, in whole seconds, that suffices for every start of `schedule`."""
    return _least_warm_up(_all_starts(schedule, times), times)


def explain_longest_start(schedule: ScheduleSpec, times: StartTimes) -> str:
    """Return a clause about the longest start of `schedule` and its stages."""
    starts = _all_starts(schedule, times)
    if not any(each for each, _ in starts):
        return "no unit ever starts"
    worst, loading = _longest_start(starts)
    return f"what the start at {_time_in_words(worst)} takes: {_stages_in_words(worst, loading, times)}"


def to_spec_time(seconds: float) -> str:
    """Return seconds as a spec writes them, rounded up to whole seconds: at least `1s`."""
    return f"{max(ceil(seconds), 1)}s"


def _all_starts(schedule: ScheduleSpec, times: StartTimes) -> Starts:
    """Return (starts of units, number of days) of a usual day and of the week around each special day."""
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


def _least_warm_up(starts: Starts, times: StartTimes) -> float:
    return max(least_warm_up(each, times, num_days) for each, num_days in starts)


def _late_start(schedule: ScheduleSpec, starts: Starts, times: StartTimes, least: float) -> Finding:
    worst, loading = _longest_start(starts)
    takes = to_spec_time(least) if least < inf else "a day"
    rule = f"S763 must be at least {takes}, as long as the start at {_time_in_words(worst)} takes"
    fix: Fix | str = nearest(takes)
    if least > LONGEST_S:
        rule += ", and at most 6h"
        fix = "shorten the stages, let fewer units start at once, or read faster"
    reason = _stages_in_words(worst, loading, times)
    return Finding("schedule.warm_up", to_spec_time(schedule.warm_up), rule, reason, fix)


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

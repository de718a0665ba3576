"""The rule that units are ready at their windows, and the longest start of a day, in numbers and in words.

A start that is not ready at its window leaves the day short of capacity, so it is refused before anything is placed.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Any

from planner.facts.day import DAY_MINUTES, hh_mm, minute_of
from planner.facts.quantities import gb
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.problems.fix import Fix
from planner.schedule.starts import Start, StartTimes, Window, least_warm_up, loading_s, starts_of
from planner.spec.hours import weeks_of
from planner.spec.schedule import ScheduleSpec, WindowSpec

__all__ = ["LONGEST_S", "as_text", "least_of_day", "longest_in_words", "unready_start"]

MAX_GBIT_PER_S = 10**8  # assumed: no storage is so fast
LONGEST_S = 6 * 3600.0  # as the field takes it

Starts = Sequence[tuple[Sequence[Start], int]]  # of days that come again and again, and how many days these are


def unready_start(schedule: ScheduleSpec, times: StartTimes, *, is_auto: bool) -> Iterator[Finding]:
    """Yield the finding that some start is not ready at its window, with what would do.

    A warm-up that `is_auto` is as long as it takes, up to the longest that there may be.
    """
    starts = _starts(schedule, times)
    least = _least(starts, times)
    if not any(each for each, _ in starts):
        return
    if least > LONGEST_S:
        yield _too_slow(starts, times)
    elif least > schedule.warm_up and not is_auto:
        yield _too_short(schedule, starts, times, least)


def least_of_day(schedule: ScheduleSpec, times: StartTimes) -> float:
    """Return the least warm-up, in whole seconds, with which every start of `schedule` is ready."""
    return _least(_starts(schedule, times), times)


def longest_in_words(schedule: ScheduleSpec, times: StartTimes) -> str:
    """Say which start of `schedule` takes longest, and what it takes."""
    starts = _starts(schedule, times)
    if not any(each for each, _ in starts):
        return "no unit ever starts"
    worst, loading = _longest(starts)
    return f"what the start at {_at(worst)} takes: {_stages(worst, loading, times)}"


def as_text(seconds: float) -> str:
    """Return a time as a spec writes it, 1 s at least."""
    return f"{max(ceil(seconds), 1)}s"


def _starts(schedule: ScheduleSpec, times: StartTimes) -> Starts:
    """Return the starts of a day like most, and of the week around each other day."""
    return [(starts_of(_windows(week, tuple(times.units)), times), len(week)) for week in weeks_of(schedule)]


def _windows(week: Sequence[Sequence[WindowSpec]], phases: Sequence[Phase]) -> list[Window]:
    """Return the windows of days one after the other, in order: each day begins in the state that ends it."""
    found = []
    for number, day in enumerate(week):
        ordered = sorted(day, key=lambda window: window.at)
        times = [0, *(minute_of(window.at) for window in ordered)]
        for minute, window in zip(times, [ordered[-1], *ordered], strict=True):
            found.append(Window(number * DAY_MINUTES + minute, {phase: window.num_units(phase) for phase in phases}))
    return found


def _least(starts: Starts, times: StartTimes) -> float:
    return max(least_warm_up(each, times, num_days) for each, num_days in starts)


def _too_short(schedule: ScheduleSpec, starts: Starts, times: StartTimes, least: float) -> Finding:
    worst, loading = _longest(starts)
    rule = f"S763 must be at least {as_text(least)}, as long as the start at {_at(worst)} takes"
    return Finding(
        "schedule.warm_up",
        as_text(schedule.warm_up),
        rule,
        _stages(worst, loading, times),
        _longer_or_faster(schedule, starts, times, least),
    )


def _longer_or_faster(schedule: ScheduleSpec, starts: Starts, times: StartTimes, least: float) -> Fix:
    """Offer the least warm-up, or the least bandwidth of the storage where that alone would do."""
    changes: list[dict[str, Any]] = [{"schedule.warm_up": as_text(least)}]
    words = f"nearest: {as_text(least)}"
    gb_per_s = _least_storage(starts, times, schedule.warm_up)
    if gb_per_s is not None:
        changes.append({"schedule.start.storage": f"{gb_per_s}GB/s"})
        words += f", or schedule.start.storage: {gb_per_s}GB/s"
    return Fix(words, tuple(changes))


def _least_storage(starts: Starts, times: StartTimes, warm_up: float) -> int | None:
    """Return the least whole GB/s of storage with which every start is ready; None where no bandwidth is enough."""

    def suffices(gb_per_s: int) -> bool:
        faster = [([replace(each, bytes_per_s=gb_per_s * 1e9) for each in some], days) for some, days in starts]
        return _least(faster, times) <= warm_up

    least, most = ceil(times.spec.storage / 8), MAX_GBIT_PER_S // 8
    if not suffices(most):
        return None
    return least + bisect_left(range(least, most), True, key=suffices)


def _too_slow(starts: Starts, times: StartTimes) -> Finding:
    """Say that no warm-up is long enough: the fix is of the storage, where that is what is slow."""
    worst, loading = _longest(starts)
    takes = f"{loading + times.fixed_s:,.0f} s" if loading < inf else "more than a day"
    rule = f"S764 must let each start end within 6h, but the one at {_at(worst)} takes {takes}"
    gb_per_s = _least_storage(starts, times, LONGEST_S)
    fix: Fix | str = "shorten the stages, let fewer units start at once, or read faster"
    if gb_per_s is not None:
        fix = Fix(f"nearest: {gb_per_s}GB/s", ({"schedule.start.storage": f"{gb_per_s}GB/s"},))
    reason = (
        _stages(worst, loading, times)
        if loading < inf
        else f"all starts together read {gb(_total(starts))} of weights a day"
    )
    return Finding("schedule.start.storage", f"{times.spec.storage / 8:g}GB/s", rule, reason, fix)


def _total(starts: Starts) -> float:
    """Return the bytes of the fullest day, on average over its neighbours."""
    return max(sum(each.num_bytes for each in some) / days for some, days in starts)


def _longest(starts: Starts) -> tuple[Start, float]:
    pairs = (pair for some, days in starts for pair in zip(some, loading_s(some, days), strict=True))
    return max(pairs, key=lambda each: each[1])


def _stages(start: Start, loading: float, times: StartTimes) -> str:
    """Say what a start of several units takes."""
    shared = start.bytes_per_s / 1e9
    who = " and ".join(f"{number} {phase} unit{'' if number == 1 else 's'}" for phase, number in start.units.items())
    return (
        f"loading the weights of {who} ({gb(start.num_bytes)}) takes {loading:,.0f} s, with at most {shared:,.0f} GB/s"
        f" from the storage and {times.node_bytes_per_s / 1e9:g} GB/s per node, and all other stages take"
        f" {times.fixed_s:,.0f} s"
    )


def _at(start: Start) -> str:
    return hh_mm(start.minute)

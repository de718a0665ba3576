"""The rules between fields of `schedule`; `layout_rules.py` asks them with the others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.terms import PHASES
from planner.facts.timezones import is_timezone, nearest_timezone
from planner.problems.fix import Fix, did_you_mean, for_example, nearest, removal
from planner.spec.other_days import wrong_days
from planner.spec.rule import Broken, Partial, Rule, declare_in
from planner.spec.times import at_different_times

__all__ = ["RULES"]

Windows = Sequence[Mapping[str, Any]]
OtherDays = Sequence[Mapping[str, Any]]
Keys = frozenset[str]

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("schedule.timezone")
def timezone_is_the_ianas(timezone: str) -> Broken | None:
    """Clocks of the controller follow it, summer time included."""
    if is_timezone(timezone):
        return None
    rule = "S518 must be a name from the IANA time zone database"
    reason = "only these names say what the offset is and when daylight saving time applies"
    zone = nearest_timezone(timezone)
    return Broken(rule, reason, did_you_mean(zone, [zone]) if zone else for_example("timezone: Asia/Shanghai"))


@_reads("schedule.given", "schedule.windows?", "schedule.other_days?")
def windows_start_at_different_times(_: Keys, windows: Windows | None, others: OtherDays | None) -> Iterator[Broken]:
    """Each lasts until the next one's."""
    for place, each in _all_windows(windows, others):
        yield from at_different_times("S511", place, each, "only one window can start at a time")


@_reads("schedule.given", "schedule.windows?", "schedule.other_days?", "spec.sections")
def windows_count_the_phases_that_there_are(
    _: Keys, windows: Windows | None, others: OtherDays | None, sections: Keys
) -> Iterator[Broken]:
    """All of them, and no other."""
    wanted = [f"{phase}_units" for phase in PHASES if phase in sections]
    for place, window in _each_window(windows, others):
        given = [key for key, number in window.items() if key != "at" and number is not None]
        if sorted(given) != sorted(wanted) and not isinstance(window, Partial):
            rule = f"S512 must set {' and '.join(wanted)}, it sets {' and '.join(given) or 'nothing'}"
            reason = "each window sets the number of units of each phase"
            yield Broken(rule, reason, _counted(place, given, wanted), place)


@_reads("schedule.given", "schedule.windows?", "schedule.other_days?")
def phases_are_on_together(_: Keys, windows: Windows | None, others: OtherDays | None) -> Iterator[Broken]:
    """Prompts without tokens, or tokens without prompts, serve nobody."""
    for place, window in _each_window(windows, others):
        off = [key for key in ("prefill_units", "decode_units") if window.get(key) == 0]
        on = [key for key in ("prefill_units", "decode_units") if window.get(key)]
        if off and on:
            rule = f"S513 must be at least 1 where {on[0]} is {window[on[0]]}"
            reason = "a request passes through both phases"
            yield Broken(rule, reason, nearest(1), f"{place}.{off[0]}", 0)


@_reads("schedule.windows", "schedule.other_days")
def some_window_has_units(windows: Windows, others: OtherDays) -> Broken | None:
    """A deployment that is always off needs no plan."""
    found = [window for _, window in _each_window(windows, others)]
    if any(isinstance(window, Partial) for window in found):
        return None
    counts = [key for key in found[0] if key != "at"] if found else []
    if not counts or any(number for window in found for key, number in window.items() if key != "at"):
        return None
    words = " and ".join(f"{key}: 1" for key in counts)
    fix = for_example(f"{words} in the first")
    return Broken("S514 must have units in some window", "otherwise nothing ever runs", fix, "schedule")


@_reads("schedule.other_days")
def other_days_are_of_the_calendar(others: OtherDays) -> Iterator[Broken]:
    """Each is named once."""
    yield from wrong_days("schedule.other_days", others)


@_reads("{phase}.units", "{phase}.given", "schedule.windows")
def units_are_counted_once(_: int, given: frozenset[str], windows: list[dict[str, Any]]) -> Broken | None:
    """Two numbers could differ; beside windows that are `auto`, units are what the busiest hour takes."""
    if "units" not in given or not windows:
        return None
    return Broken(
        "S515 must not be combined with a schedule", "the schedule's windows set the number of units", removal()
    )


def _all_windows(windows: Windows | None, others: OtherDays | None) -> Iterator[tuple[str, Windows]]:
    """Yield the windows of each kind of day, and where they stand."""
    if windows is not None:
        yield "schedule.windows", windows
    for index, other in enumerate(others or ()):
        yield f"schedule.other_days.{index}.windows", other.get("windows", ())


def _each_window(windows: Windows | None, others: OtherDays | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for place, each in _all_windows(windows, others):
        yield from ((f"{place}.{index}", window) for index, window in enumerate(each))


def _counted(place: str, given: list[str], wanted: list[str]) -> Fix | str:
    """What to remove of what is given, and what to write beside it: how many units, only the user knows."""
    missing, unwanted = [key for key in wanted if key not in given], [key for key in given if key not in wanted]
    if not missing:
        return removal(*(f"{place}.{key}" for key in unwanted), words=f"remove {' and '.join(unwanted)}")
    words = f"write how many, as {' and '.join(f'{key}: ...' for key in missing)}"
    return f"{words}, and remove {' and '.join(unwanted)}" if unwanted else words

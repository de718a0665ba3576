"""The rules of `schedule`."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.facts.terms import PHASES, Phase
from planner.facts.timezones import is_timezone, nearest_timezone
from planner.problems.finding import Finding
from planner.problems.fix import Fix, applied, did_you_mean, for_example, nearest, removal
from planner.rules.days import at_different_times, days_listed_twice
from planner.rules.rule import Rule, without_effect
from planner.rules.written import Written
from planner.spec.declared import field_at

__all__ = ["RULES", "without_spent"]

WINDOWS = ("schedule.windows", "schedule.other_days.*.windows")
EACH_WINDOW = tuple(f"{windows}.*" for windows in WINDOWS)
UNITS = tuple(f"{phase}_units" for phase in PHASES)
OF_AUTO = {  # what the planner may decide -> what it heeds for that, and nothing does later
    "schedule.windows": (
        *("schedule.headroom", "schedule.min_stay"),
        *(f"schedule.min_units.{phase}" for phase in PHASES),
        "traffic.capacity",
    ),
}
OF_SCHEDULE = tuple(each for fields in OF_AUTO.values() for each in fields if each.startswith("schedule."))


def without_spent(data: Mapping[str, Any], autos: frozenset[str]) -> dict[str, Any]:
    """Return the data of a spec whose `autos` are decided, with defaults for what was heeded for them alone."""
    spent = [field for decided, fields in OF_AUTO.items() if autos & {"schedule", decided} for field in fields]
    there = [field for field in spent if (data.get(field.split(".")[0]) or {}).get(field.split(".")[1]) is not None]
    return applied(data, {field: field_at(field).default for field in there})


def timezone_is_the_ianas(c: Written) -> Iterator[Finding]:
    """Clocks of the controller follow it, summer time included."""
    timezone: str = c["schedule.timezone"]
    if not is_timezone(timezone):
        rule = "S518 must be a name from the IANA time zone database"
        reason = "only these names say what the offset is and when daylight saving time applies"
        zone = nearest_timezone(timezone)
        fix = did_you_mean(zone, [zone]) if zone else for_example("timezone: Asia/Shanghai")
        yield Finding("schedule.timezone", timezone, rule, reason, fix)


def windows_start_at_different_times(c: Written, windows: str) -> Iterator[Finding]:
    """Each lasts until the next one's."""
    yield from at_different_times(windows, c[windows] or (), "only one window can start at a time")


def windows_count_the_phases_that_there_are(c: Written, window: str) -> Iterator[Finding]:
    """All of them, and no other."""
    wanted = [f"{phase}_units" for phase in PHASES if phase in c.sections]
    given = [key for key in UNITS if c[f"{window}.{key}"] is not None]
    if given != wanted:
        rule = f"S512 must set {' and '.join(wanted)}, it sets {' and '.join(given) or 'nothing'}"
        reason = "each window sets the number of units of each phase"
        yield Finding(window, None, rule, reason, _counted(window, given, wanted))


def phases_are_on_together(c: Written, window: str) -> Iterator[Finding]:
    """Prompts without tokens, or tokens without prompts, serve nobody."""
    numbers = {key: c[f"{window}.{key}"] for key in ("prefill_units", "decode_units")}
    off = [key for key, number in numbers.items() if number == 0]
    on = [key for key, number in numbers.items() if number]
    if off and on:
        rule = f"S513 must be at least 1 where {on[0]} is {numbers[on[0]]}"
        yield Finding(f"{window}.{off[0]}", 0, rule, "a request passes through both phases", nearest(1))


def some_window_has_units(c: Written) -> Iterator[Finding]:
    """A deployment that is always off needs no plan."""
    c.require("schedule.windows")
    c.require("schedule.other_days")
    windows = [each for pattern in EACH_WINDOW for each in c.matching(pattern)]
    found = [{key: c[f"{window}.{key}"] for key in UNITS} for window in windows]
    counts = [key for key, number in found[0].items() if number is not None] if found else []
    if counts and not any(number for window in found for number in window.values()):
        fix = for_example(f"{' and '.join(f'{key}: 1' for key in counts)} in the first")
        yield Finding("schedule", None, "S514 must have units in some window", "otherwise nothing ever runs", fix)


def other_days_are_named_once(c: Written) -> Iterator[Finding]:
    """The windows of a day are in one place."""
    yield from days_listed_twice("schedule.other_days", c["schedule.other_days"])


def units_are_counted_once(c: Written, phase: Phase) -> Iterator[Finding]:
    """Two numbers could differ; beside windows that are `auto`, units are what the busiest hour takes."""
    c.require(f"{phase}.units")
    windows: list[dict[str, Any]] = c["schedule.windows"]
    if c.gives(f"{phase}.units") and windows:
        path, reason = f"{phase}.units", "the schedule's windows set the number of units"
        yield without_effect("with a schedule", reason, path, c[path])


def values_are_of_auto(c: Written, field: str) -> Iterator[Finding]:
    """Find a value that only what is decided by the planner would follow; what is left to it is not there yet."""
    decided = next(path for path, fields in OF_AUTO.items() if field in fields)
    value: Any = c[field]
    c.require(decided)
    if value == field_at(field).default or c.autos & {"schedule", decided}:
        return
    reason = f"the planner leaves {decided} as it is written"
    fix = removal(words=f"remove it, or write {decided}: auto")
    yield without_effect(f"without {decided}: auto", reason, field, value, fix)


def _counted(place: str, given: list[str], wanted: list[str]) -> Fix | str:
    """What to remove of what is given, and what to write beside it: how many units, only the user knows."""
    missing, unwanted = [key for key in wanted if key not in given], [key for key in given if key not in wanted]
    if not missing:
        return removal(*(f"{place}.{key}" for key in unwanted), words=f"remove {' and '.join(unwanted)}")
    words = f"write how many, as {' and '.join(f'{key}: ...' for key in missing)}"
    return f"{words}, and remove {' and '.join(unwanted)}" if unwanted else words


RULES = (
    Rule("S518", "fields", timezone_is_the_ianas),
    Rule("S408", "fields", windows_start_at_different_times, WINDOWS),
    Rule("S512", "fields", windows_count_the_phases_that_there_are, EACH_WINDOW),
    Rule("S513", "fields", phases_are_on_together, EACH_WINDOW),
    Rule("S514", "fields", some_window_has_units),
    Rule("S408", "fields", other_days_are_named_once),
    Rule("S560", "fields", units_are_counted_once, PHASES),
    Rule("S560", "fields", values_are_of_auto, OF_SCHEDULE),
)

"""The rules of `schedule`."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.facts.calendar import is_timezone, nearest_timezone
from planner.facts.terms import PHASES, Phase
from planner.problems.finding import Finding
from planner.problems.fix import Fix, apply_change, did_you_mean, for_example, nearest, removal
from planner.rules.rule import Rule, report_no_effect
from planner.rules.valid_values import ValidValues
from planner.spec.declared import field_at
from planner.spec.undecided import AUTO

WINDOWS = ("schedule.windows", "schedule.other_days.*.windows")
EACH_WINDOW = tuple(f"{windows}.*" for windows in WINDOWS)
UNITS = tuple(f"{phase}_units" for phase in PHASES)
AUTO_OPTIONS = {  # field -> options that have an effect only if the field is `auto`
    "schedule.windows": (
        "schedule.headroom",
        *(f"schedule.min_units.{phase}" for phase in PHASES),
    ),
}
SCHEDULE_OPTIONS = tuple(each for fields in AUTO_OPTIONS.values() for each in fields if each.startswith("schedule."))


def reset_spent_options(data: Mapping[str, Any], autos: frozenset[str]) -> dict[str, Any]:
    """Return a spec's `data` with defaults in place of options that served only to decide `auto` fields.

    `autos` are the paths that were `auto` and are decided now.
    """
    spent = [field for decided, fields in AUTO_OPTIONS.items() if autos & {"schedule", decided} for field in fields]
    there = [field for field in spent if (data.get(field.split(".")[0]) or {}).get(field.split(".")[1]) is not None]
    return apply_change(data, {field: field_at(field).default for field in there})


def auto_windows_need_profile(c: ValidValues) -> Iterator[Finding]:
    """Reject `windows: auto` without a demand profile, which such windows follow."""
    if c.is_open("schedule", "schedule.windows") and not c.is_given("traffic.profile"):
        rule = "S516 needs traffic.profile"
        reason = "auto windows follow the demand of each hour"
        fix = "write traffic.profile: the demand of each of 24 hours"
        yield Finding("schedule.windows", AUTO, rule, reason, fix)


def timezone_is_known(c: ValidValues) -> Iterator[Finding]:
    """Reject time zones outside the IANA database, which gives their offsets and summer time."""
    timezone: str = c["schedule.timezone"]
    if not is_timezone(timezone):
        rule = "S518 must be a name from the IANA time zone database"
        reason = "only these names say what the offset is and when daylight saving time applies"
        zone = nearest_timezone(timezone)
        fix = did_you_mean(zone, [zone]) if zone else for_example("timezone: Asia/Shanghai")
        yield Finding("schedule.timezone", timezone, rule, reason, fix)


def windows_set_units_of_each_phase(c: ValidValues, window: str) -> Iterator[Finding]:
    """Require each window to set the number of units of every phase of the spec, and of no other phase."""
    wanted = [f"{phase}_units" for phase in PHASES if phase in c.sections]
    given = [key for key in UNITS if c[f"{window}.{key}"] is not None]
    if given != wanted:
        rule = f"S512 must set {' and '.join(wanted)}, it sets {' and '.join(given) or 'nothing'}"
        reason = "each window sets the number of units of each phase"
        yield Finding(window, None, rule, reason, _offer_counts(window, given, wanted))


def phases_are_on_together(c: ValidValues, window: str) -> Iterator[Finding]:
    """Reject windows with only prefill or only decode units: a request needs both."""
    numbers = {key: c[f"{window}.{key}"] for key in ("prefill_units", "decode_units")}
    off = [key for key, number in numbers.items() if number == 0]
    on = [key for key, number in numbers.items() if number]
    if off and on:
        rule = f"S513 must be at least 1 where {on[0]} is {numbers[on[0]]}"
        yield Finding(f"{window}.{off[0]}", 0, rule, "a request passes through both phases", nearest(1))


def some_window_has_units(c: ValidValues) -> Iterator[Finding]:
    """Reject a schedule without units in any window: nothing would ever run."""
    c.require("schedule.windows")
    c.require("schedule.other_days")
    windows = [each for pattern in EACH_WINDOW for each in c.expand_paths(pattern)]
    found = [{key: c[f"{window}.{key}"] for key in UNITS} for window in windows]
    counts = [key for key, number in found[0].items() if number is not None] if found else []
    if counts and not any(number for window in found for number in window.values()):
        fix = for_example(f"{' and '.join(f'{key}: 1' for key in counts)} in the first")
        yield Finding("schedule", None, "S514 must have units in some window", "otherwise nothing ever runs", fix)


def units_are_set_once(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject a phase's `units` beside written windows, which set the number of units. Auto windows read `units`."""
    c.require(f"{phase}.units")
    windows: list[dict[str, Any]] = c["schedule.windows"]
    if c.is_given(f"{phase}.units") and windows:
        path, reason = f"{phase}.units", "the schedule's windows set the number of units"
        yield report_no_effect("with a schedule", reason, path, c[path])


def options_need_auto(c: ValidValues, field: str) -> Iterator[Finding]:
    """Reject an option that has an effect only while some field is `auto`, if that field has a value instead."""
    decided = next(path for path, fields in AUTO_OPTIONS.items() if field in fields)
    value: Any = c[field]
    c.require(decided)
    if value == field_at(field).default or c.autos & {"schedule", decided}:
        return
    reason = f"the planner leaves {decided} as it is written"
    fix = removal(words=f"remove it, or write {decided}: auto")
    yield report_no_effect(f"without {decided}: auto", reason, field, value, fix)


def _offer_counts(place: str, given: list[str], wanted: list[str]) -> Fix | str:
    """Return a fix for the window at `place`, which has the keys `given` and should have `wanted`.

    For missing numbers the fix has only words, since only the user knows the numbers.
    """
    missing, unwanted = [key for key in wanted if key not in given], [key for key in given if key not in wanted]
    if not missing:
        return removal(*(f"{place}.{key}" for key in unwanted), words=f"remove {' and '.join(unwanted)}")
    words = f"write how many, as {' and '.join(f'{key}: ...' for key in missing)}"
    return f"{words}, and remove {' and '.join(unwanted)}" if unwanted else words


RULES = (
    Rule("S516", "fields", auto_windows_need_profile),
    Rule("S518", "fields", timezone_is_known),
    Rule("S512", "fields", windows_set_units_of_each_phase, EACH_WINDOW),
    Rule("S513", "fields", phases_are_on_together, EACH_WINDOW),
    Rule("S514", "fields", some_window_has_units),
    Rule("S560", "fields", units_are_set_once, PHASES),
    Rule("S560", "fields", options_need_auto, SCHEDULE_OPTIONS),
)

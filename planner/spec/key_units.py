"""Keys that say a field of ours in another unit: `ttft_s`, `input_tokens_per_second`, or `tpot: 50ms`.

Our keys have their unit in their name, or count a day's. A key that differs in the unit alone says the same with
another number, and one without a unit says nobody knows what unless its value has one. A percentile of what we say as
an average is another notion.

    ttft_s: 2                           ttft_ms: 2000
    itl: 50ms                           tpot_ms: 50
    input_tokens_per_second: 7000000    input_tokens: 604800000000
    ttft_p99_ms: 2000                   none of ours
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from planner.problems.fix import Fix, removal

__all__ = ["InOurUnit", "in_our_unit"]

MS = {"us": 1e-3, "ms": 1, "s": 1e3, "min": 6e4}
TIME_WORDS = {
    **MS,
    **dict.fromkeys(("msec", "millis", "milliseconds"), 1),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), 1e3),
}
A_DAY = {
    **dict.fromkeys(("s", "sec", "second"), 86_400),
    **dict.fromkeys(("m", "min", "minute"), 1_440),
    **dict.fromkeys(("h", "hour"), 24),
    **dict.fromkeys(("d", "day"), 1),
}
MAX_NUMBER = 1e18  # assumed: nobody means a larger one, and its product may be no number
COUNTED_A_DAY = ("input_tokens", "output_tokens")
PER = re.compile(rf"(?P<field>{'|'.join(COUNTED_A_DAY)})_(?:per|a)_(?P<time>[a-z]+)")
TIME = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>us|ms|s|min)")
PERCENTILE = re.compile(r"p[0-9]{2,4}|median")
MEANS = ("mean", "avg", "average")

# Other words for the same time, as the benchmarks of vLLM and SGLang print them.
SAME_TIMES = {
    "itl": "tpot",
    "tbt": "tpot",
    "inter_token_latency": "tpot",
    "time_between_tokens": "tpot",
    "time_per_output_token": "tpot",
    "time_to_first_token": "ttft",
}


@dataclass(frozen=True)
class InOurUnit:
    """The field that was meant, and its value; None where nobody can tell it, with what to do instead."""

    field: str
    value: float | None
    reason: str
    instead: Fix | str = ""
    is_percentile: bool = False


def in_our_unit(key: str, section: Mapping[str, Any], fields: Collection[str]) -> InOurUnit | None:
    """Return which of the `fields` of its `section` the `key` says in another unit; None for any other key.

    A field that stands there as well, or that a key before it says, is given already.
    """
    meant = _meant(key, section.get(key), fields)
    if meant is None:
        return None
    given = {each: each for each in fields if section.get(each) is not None}
    for other, value in takewhile(lambda item: item[0] != key, section.items()):
        found = _meant(str(other), value, fields)
        if found is not None and found.value is not None:
            given.setdefault(found.field, str(other))
    return _beside(meant, given[meant.field]) if meant.field in given else meant


def _meant(key: str, value: Any, fields: Collection[str]) -> InOurUnit | None:
    """Return which field `key` says in another unit, whatever stands beside it."""
    plain = key.lstrip("-").replace("-", "_").casefold()
    found = _a_day(plain, value) or _in_milliseconds(plain, value)
    return found if found.field in fields and found.field != plain else None


def _beside(found: InOurUnit, other: str) -> InOurUnit:
    """Return what to do with a key beside the `other` that gives its field."""
    reason = found.reason if found.is_percentile else f"{other} already gives the same"
    return replace(found, value=None, reason=reason, instead=removal())


def _a_day(key: str, value: Any) -> InOurUnit | None:
    """Return the day's tokens that so many a second, or another time, are."""
    rate = PER.fullmatch(key)
    if rate is None or rate["time"] not in A_DAY:
        return None
    number = _plainest(value * A_DAY[rate["time"]]) if _is_number(value) else None
    return InOurUnit(rate["field"], number, "it counts the tokens of a day", f"write {rate['field']}, of a day")


def _in_milliseconds(key: str, value: Any) -> InOurUnit:
    """Return the time that `key` would name, whether or not there is such a field."""
    words = key.split("_")
    unit = words[-1] if words[-1] in TIME_WORDS else None
    of_time = [each for each in (words[:-1] if unit else words) if each not in MEANS]
    notion = [each for each in of_time if not PERCENTILE.fullmatch(each)]
    name = "_".join(notion)
    field = f"{SAME_TIMES.get(name, name)}_ms"
    if notion != of_time:
        reason = "predictions are averages, so no percentile can be promised"
        return InOurUnit(field, None, reason, f"write the average that is promised as {field}", is_percentile=True)
    number = _in_ms(value, unit)
    if number is None:
        return InOurUnit(field, None, "it could be in any unit", f"write {field}, in milliseconds")
    same = "tidemill calls it by another name"
    return InOurUnit(field, number, same if number == value else f"{field} says it in milliseconds")


def _in_ms(value: Any, unit: str | None) -> float | None:
    """Return `value` in milliseconds: by its own unit, else by that of its key; None where neither has one."""
    match = TIME.fullmatch(value) if isinstance(value, str) else None
    if match:
        return _plainest(float(match["number"]) * MS[match["unit"]])
    return _plainest(value * TIME_WORDS[unit]) if unit and _is_number(value) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_NUMBER


def _plainest(number: float) -> float:
    """Return `number` as one writes it: without a fraction where it has none."""
    rounded = round(number, 9)
    return int(rounded) if rounded == int(rounded) else rounded

"""A table of the lists that may hold a value only once, and the rule that checks them."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from planner.problems.finding import Finding, Unknown
from planner.problems.fix import removal
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues

PATH, TIME = "one path can hold only one volume", "only one window can start at a time"
DAY = "a day can be in one entry only"

UNIQUE: Mapping[str, str] = {  # what no two items of a list may share (the item, or this key) -> the reason
    "cluster.nodes.*.name": "otherwise its GPUs would be used twice",
    "cluster.spares.*": "a spare can replace only one node",
    "schedule.windows.*.at": TIME,
    "schedule.other_days.*.windows.*.at": TIME,
    "schedule.other_days.*.days.*": DAY,
    "traffic.other_days.*.days.*": DAY,
    "kubernetes.volumes.*.mount_path": PATH,
    "kubernetes.gateway.volumes.*.mount_path": PATH,
}


def values_differ(c: ValidValues, pattern: str) -> Iterator[Finding]:
    """Reject a value that an earlier item of its list has. A day may not be in two entries of `other_days` either."""
    first: dict[tuple[str, Any], str] = {}
    is_day = UNIQUE[pattern] == DAY
    for path in c.expand_paths(pattern):
        value = _read_value(c, path)
        holder = pattern if is_day else re.sub(r"\.[0-9]+(\.[a-z_]+)?$", "", path)
        if value is not None and (holder, value) in first:
            rule = f"S408 must differ from {first[holder, value]}"
            fix = removal() if pattern.endswith("*") else "write another, or remove one of the two"
            yield Finding(path, value, rule, UNIQUE[pattern], fix)
        first.setdefault((holder, value), path)


def _read_value(c: ValidValues, path: str) -> Any:
    """Return the value at `path`; None if it is wrong, so that the other items are still compared."""
    try:
        return c[path]
    except Unknown:
        return None


RULES = tuple(
    Rule("S408", "fields", partial(values_differ, pattern=each), about=f"{each} must differ: {why}.")
    for each, why in UNIQUE.items()
)

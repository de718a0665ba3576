"""The warnings of a plan in its JSON, written and read back.

They stand there without a place: a plan depends on what a spec says, and not on where it says it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.problems.finding import Finding
from planner.problems.fix import Fix

__all__ = ["warning_from", "warning_json"]

PLACE = ("file", "line", "column")


def warning_json(warning: Finding) -> dict[str, Any]:
    """Return `warning` as a plan's JSON holds it."""
    return {key: value for key, value in warning.as_json().items() if key not in PLACE}


def warning_from(told: Mapping[str, Any], path: Path) -> Finding:
    """Return the warning that the plan in the file at `path` holds as `told`; its place is that file."""
    fix = Fix(told["fix"], tuple(told.get("changes", ())))
    return Finding(told["path"], told["value"], told["rule"], told["reason"], fix).at(str(path))

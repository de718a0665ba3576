"""Sections that have a short form: `schedule: auto` or `model: deepseek-r1`. A path below one means the full form."""

from collections.abc import Iterable, Mapping
from typing import Any

from planner.spec.undecided import AUTO

SHORT_FORMS = {"schedule": "windows", "model": "catalog", "engine": "name"}  # section -> field written in its place


def expand_short_forms(data: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the spec's `data`, in which each section that contains one of `paths` is in its full form."""
    entered = {section for section, _, rest in (path.partition(".") for path in paths) if rest}
    short = {each: data[each] for each in SHORT_FORMS if each in entered and _is_short(each, data.get(each))}
    return {**data, **{section: {SHORT_FORMS[section]: value} for section, value in short.items()}}


def _is_short(section: str, value: Any) -> bool:
    return isinstance(value, str) and (section != "schedule" or value == AUTO)

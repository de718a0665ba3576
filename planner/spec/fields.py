"""Check single fields with Pydantic, and report mistakes in our words with the nearest fix.

Valid fields are passed on (`CheckedFields.values`), so rules between fields can check them too, and a user sees all
mistakes of a file at once.

Rules between two fields are in `planner/rules`, and unknown keys in `unknown_keys.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from planner.problems.finding import Finding
from planner.spec.declared import may_be_auto, path_of, section_of
from planner.spec.schema import Spec
from planner.spec.section import Section
from planner.spec.undecided import AUTO


class Partial(dict[str, Any]):
    """A list item without its wrong keys.

    Rules must not report a key as missing here: the file may have it, misspelt.
    """


@dataclass(frozen=True)
class CheckedFields:
    """The result of a check: the findings, and dotted path -> value of each valid field, defaults included."""

    findings: list[Finding]
    values: dict[str, Any]
    renamed: frozenset[str]  # paths of fields that are in the file under a misspelt key, and their sections


def check_fields(data: Mapping[str, Any], unread: frozenset[str] = frozenset()) -> CheckedFields:
    """Check each field of `data`, except those at `unread` paths, whose values the YAML reader refused."""
    details = [each for each in _pydantic_errors(data) if not _is_at_or_below(path_of(each["loc"]), unread)]
    findings, renamed = _find_mistakes(details, data)
    wrong = _WrongPaths(frozenset(path_of(detail["loc"]) for detail in details) | renamed | unread)
    sections = {path.partition(".")[0] for path in renamed}
    return CheckedFields(findings, dict(_valid_values(Spec, data, wrong, prefix="")), renamed | sections)


def _is_at_or_below(path: str, others: frozenset[str]) -> bool:
    return bool(others) and any(f"{path}.".startswith(f"{each}.") for each in others)


def _find_mistakes(details: Sequence[ErrorDetails], data: Mapping[str, Any]) -> tuple[list[Finding], frozenset[str]]:
    """Return (findings for Pydantic's `details`, paths of fields that are in `data` under a misspelt key)."""
    if not details:
        return [], frozenset()
    from planner.spec.wrong_fields import explain_errors  # imported late, because most specs have no mistake

    return explain_errors(details, data)


class _WrongPaths:
    """The dotted paths of wrong values. Sections above a wrong value are known too."""

    def __init__(self, paths: frozenset[str]) -> None:
        self.paths = paths
        self._above = {path[:dot] for path in paths for dot in range(len(path)) if path[dot] == "."}

    def is_below(self, path: str) -> bool:
        """Return whether a wrong value is somewhere below `path`."""
        return path in self._above


def _pydantic_errors(data: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        Spec.model_validate(data)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _valid_values(section: type[BaseModel], data: Any, wrong: _WrongPaths, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        if path in wrong.paths or (name not in data and field.is_required()):
            continue
        inner = section_of(field)
        value = data.get(name, {} if isinstance(field.default, Section) else field.default)
        if inner and isinstance(value, dict):
            yield from _valid_values(inner, value, wrong, f"{path}.")
        elif inner and isinstance(value, list):
            yield path, _right_items(path, value, wrong)
        elif wrong.is_below(path):
            items = enumerate(value if isinstance(value, list) else ())
            yield from ((f"{path}.{index}", item) for index, item in items if f"{path}.{index}" not in wrong.paths)
        elif not _is_undecided(field, value):
            yield path, value


def _is_undecided(field: FieldInfo, value: Any) -> bool:
    """Return whether the field's value is `auto`. No rule can check it yet."""
    return value == AUTO and may_be_auto(field)


def _right_items(path: str, items: list[Any], wrong: _WrongPaths) -> list[Any]:
    """Return the list `items` at `path`, each item without its wrong keys, so that rules can check the rest."""
    mistakes: dict[int, set[str]] = {}
    for each in wrong.paths:
        if each.startswith(f"{path}."):
            number, _, key = each.removeprefix(f"{path}.").partition(".")
            mistakes.setdefault(int(number), set()).add(key.partition(".")[0])
    right = list(items)
    for index, keys in mistakes.items():
        item = items[index] if isinstance(items[index], dict) else {}
        right[index] = Partial({key: value for key, value in item.items() if key not in keys})
    return right

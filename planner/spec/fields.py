"""What is wrong with single fields: Pydantic's verdict in our words, with the nearest fix.

Also hands the valid rest on (`CheckedFields.values`), so that the rules between fields can still be asked about
everything that is right, and a user sees all mistakes of a file in one go.

It knows the spec's fields but no rule between two of them: those are in `planner/rules`. Keys that are no fields are
`unknown_keys.py`'s.
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

__all__ = ["CheckedFields", "Partial", "check_fields"]


class Partial(dict[str, Any]):
    """An item of a list without what is wrong in it. A key that it lacks may be there: no rule may say it is not."""


@dataclass(frozen=True)
class CheckedFields:
    """What is wrong, and what is right: dotted path -> value, defaults included."""

    findings: list[Finding]
    values: dict[str, Any]
    renamed: frozenset[str]  # paths of fields that stand there under a misspelt key, and their sections


def check_fields(data: Mapping[str, Any], unread: frozenset[str] = frozenset()) -> CheckedFields:
    """Each field of `data` by itself, apart from what is `unread`: the file does not say what stands at these paths."""
    details = [each for each in _pydantic_errors(data) if not _is_at_or_below(path_of(each["loc"]), unread)]
    findings, renamed = _what_is_wrong(details, data)
    wrong = _Wrong(frozenset(path_of(detail["loc"]) for detail in details) | renamed | unread)
    sections = {path.partition(".")[0] for path in renamed}
    return CheckedFields(findings, dict(_values(Spec, data, wrong, prefix="")), renamed | sections)


def _is_at_or_below(path: str, others: frozenset[str]) -> bool:
    return bool(others) and any(f"{path}.".startswith(f"{each}.") for each in others)


def _what_is_wrong(details: Sequence[ErrorDetails], data: Mapping[str, Any]) -> tuple[list[Finding], frozenset[str]]:
    """Return `details` in our words, and the paths of fields that stand there under a misspelt key."""
    if not details:
        return [], frozenset()
    from planner.spec.wrong_fields import explain_errors  # imported late: most specs are right

    return explain_errors(details, data)


class _Wrong:
    """The paths of what is wrong."""

    def __init__(self, paths: frozenset[str]) -> None:
        self.paths = paths
        self._above = {path[:dot] for path in paths for dot in range(len(path)) if path[dot] == "."}

    def is_below(self, path: str) -> bool:
        """Whether something is wrong in what stands at `path`."""
        return path in self._above


def _pydantic_errors(data: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        Spec.model_validate(data)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _values(section: type[BaseModel], data: Any, wrong: _Wrong, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        if path in wrong.paths or (name not in data and field.is_required()):
            continue
        inner = section_of(field)
        value = data.get(name, {} if isinstance(field.default, Section) else field.default)
        if inner and isinstance(value, dict):
            yield from _values(inner, value, wrong, f"{path}.")
        elif inner and isinstance(value, list):
            yield path, _right_items(path, value, wrong)
        elif wrong.is_below(path):
            items = enumerate(value if isinstance(value, list) else ())
            yield from ((f"{path}.{index}", item) for index, item in items if f"{path}.{index}" not in wrong.paths)
        elif not _is_undecided(field, value):
            yield path, value


def _is_undecided(field: FieldInfo, value: Any) -> bool:
    """`auto`, where a number may be left to the planner: no rule can read it yet."""
    return value == AUTO and may_be_auto(field)


def _right_items(path: str, items: list[Any], wrong: _Wrong) -> list[Any]:
    """`items`, those with mistakes without them: the others' rules can still be asked."""
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

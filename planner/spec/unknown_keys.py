"""Report unknown keys of a spec, each with the field that may have been meant.

Suggestions come in this order: other tools' names (`elsewhere.yaml`), a field of the same name in another section, the
most similar field of the same section. A finding has a change only if there is one suggestion.

The value of an unknown key may be a secret, so no finding quotes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from planner.facts.terms import PHASES
from planner.problems.finding import Finding, may_be_secret
from planner.problems.fix import HERE, Fix, closest_choice, fold_spelling, is_misspelling, removal
from planner.spec.declared import holds_list, path_of, section_at, section_of, table_key
from planner.spec.schema import Spec

TABLE = Path(__file__).with_name("elsewhere.yaml")


@dataclass(frozen=True)
class Row:
    """A row of `elsewhere.yaml`: other tools' names, and what to write here. The file's top explains the columns."""

    names: Sequence[str]
    at: str | Sequence[str] | None = None
    write: str = ""
    why: str = ""

    @property
    def reason(self) -> str:
        """The reason why the name does not exist in our spec."""
        return self.why or f"tidemill calls it {self.write}"

    @property
    def places(self) -> Sequence[str | None]:
        """The sections or fields where the row applies; None means everywhere."""
        return [self.at] if self.at is None or isinstance(self.at, str) else self.at


@cache
def read_table() -> Sequence[Row]:
    """Return all rows of `elsewhere.yaml`."""
    return [Row(**row) for row in yaml.load(TABLE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)]


def find_row(place: str, name: str) -> Row | None:
    """Return the row for the key `name` in the section `place`, or for the value `name` of the field `place`.

    Return None if there is no row.
    """
    rows = _rows_by_name()
    return rows.get((place, fold_spelling(name))) or rows.get((None, fold_spelling(name)))


def explain_unknown_key(detail: ErrorDetails, spec: Mapping[str, Any]) -> Finding:
    """Return the finding for the unknown key that Pydantic's error `detail` is about."""
    parent, name = path_of(detail["loc"][:-1]), str(detail["loc"][-1])
    reason, fix = _explain_key(parent, name, list(section_at(detail["loc"]).model_fields), detail["input"], spec)
    rule = f"S201 is not a key of {parent or 'the spec'}"
    return Finding(_join(parent, name), None, rule, reason, fix)


def _explain_key(
    parent: str, name: str, fields: Sequence[str], value: Any, spec: Mapping[str, Any]
) -> tuple[str, Fix | str]:
    """Return (reason why the section `parent` has no key `name`, fix)."""
    row = find_row(table_key(parent), name)
    if row and not row.write:
        return row.reason, removal()
    ours = row.write if row else name
    if meant := [_join(parent, ours)] if ours in fields else _find_homes(ours, spec):
        sections = (path.rpartition(".")[0] or "the spec" for path in meant)
        return row.reason if row else f"it is a key of {' and '.join(sections)}", _move_fix(parent, meant, value, spec)
    if row:
        return row.reason, f"write {row.write}"
    near = closest_choice(name, fields)
    if near is None:
        return f"known keys: {', '.join(fields)}", "write one of these, or remove it"
    fix = _move_fix(parent, [_join(parent, near)], value, spec)
    return f"{parent or 'the spec'} has {near}", fix if is_misspelling(name, near) else str(fix)


def _move_fix(parent: str, meant: Sequence[str], value: Any, spec: Mapping[str, Any]) -> Fix | str:
    """Return the fix that moves the value to the field that `meant` names; only words unless the move is certain.

    `meant` has the paths of all fields that may have been meant.
    """
    if len(meant) > 1:
        return f"write {' or '.join(meant)}"
    words = f"did you mean {meant[0].removeprefix(f'{parent}.')}?"
    is_certain = _is_free(meant[0], spec) and not may_be_secret(meant[0])
    return Fix(words, ({HERE: None, meant[0]: value},)) if is_certain else words


def _is_free(path: str, spec: Mapping[str, Any]) -> bool:
    """Return whether the spec has no value at `path`, and could have one there."""
    here: Any = spec
    *above, last = path.split(".")
    for part in above:
        if isinstance(here, list) and part.isdecimal():
            here = here[int(part)]
        elif isinstance(here, dict):
            here = here.get(part)
        if here is None:
            return True
    return isinstance(here, dict) and last not in here


def _find_homes(name: str, spec: Mapping[str, Any]) -> Sequence[str]:
    """Return the least nested paths of fields called `name`.

    Fields in lists, or in phases that the spec lacks, are left out.
    """
    absent = [f"{phase}." for phase in PHASES if phase not in spec]
    found = [path for path in _field_paths() if f".{path}".endswith(f".{name}") and not path.startswith(tuple(absent))]
    return [path for path in found if path.count(".") == min(each.count(".") for each in found)]


@cache
def _field_paths() -> Sequence[str]:
    """Return the dotted paths of all fields of the spec outside lists."""
    return list(_fields_of(Spec, ""))


def _fields_of(section: type[BaseModel], parent: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield (path := _join(parent, name))
        if (inner := section_of(field)) and not holds_list(field):
            yield from _fields_of(inner, path)


@cache
def _rows_by_name() -> Mapping[tuple[str | None, str], Row]:
    return {(place, fold_spelling(name)): row for row in read_table() for name in row.names for place in row.places}


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name

"""Every field of the spec in words, from its JSON Schema: what it takes, its default, its meaning, an example.

`tidemill explain FIELD` and `docs/spec.md` are both made from this, so that they never differ. What a field means is
said where it is declared, in `planner/spec`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.spec.declared import table_key
from planner.spec.schema import Spec
from planner.spec.unknown_keys import Row, read_table

UNITS = re.compile(r"\(([\w/|]+)\)\$$")  # at the end of a quantity's pattern
PLAIN_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "`true`, `false`",
    "object": "a mapping",
}


@dataclass(frozen=True)
class FieldText:
    """What a user reads about one field of a section."""

    name: str
    takes: str
    units: Sequence[str]  # that a quantity may be written in; empty for anything else
    default: str | None  # None if there is none, or if it is a section of defaults
    is_required: bool
    description: str
    example: str


@dataclass(frozen=True)
class SectionText:
    """What a user reads about a section. Among its paths, "" is the whole spec, `cluster.nodes[]` a list item."""

    paths: Sequence[str]
    description: str
    fields: Sequence[FieldText]


@cache
def sections() -> Sequence[SectionText]:
    """Return every section of the spec in words, outermost first."""
    schema = Spec.model_json_schema()
    paths: dict[str, list[str]] = {}
    _collect_paths("", schema, schema["$defs"], paths)
    named = schema["$defs"] | {schema["title"]: schema}
    return [_describe_section(named[title], tuple(dict.fromkeys(found))) for title, found in paths.items()]


@cache
def field_paths() -> Mapping[str, FieldText]:
    """Return dotted path -> field, for all fields of all sections at each of their paths."""
    return {
        f"{path}.{field.name}".lstrip("."): field
        for section in sections()
        for path in section.paths
        for field in section.fields
    }


def find_section(path: str) -> SectionText | None:
    """Return the section at `path`, or of the list items at `path`; None for a field that holds no section."""
    return next((each for each in sections() if path in each.paths or f"{path}[]" in each.paths), None)


def names_elsewhere(path: str) -> Sequence[Row]:
    """Return the rows of `planner/spec/elsewhere.yaml` with what other tools call the field at `path`."""
    place = table_key(path.replace("[]", ""))
    return [row for row in read_table() if place in _renamed_fields(row)]


def _renamed_fields(row: Row) -> Iterator[str]:
    """Yield the paths of the field that other tools call by the names in `row`.

    Yields nothing if `row` gives advice instead, or other names of values.
    """
    name = row.write.partition(",")[0]
    if name.replace(".", "_").isidentifier():
        for place in row.places:
            yield f"{place}.{name}" if place and "." not in name else name
            if place is None:
                yield f"PHASE.{name}"


def describe_field(name: str, field: Mapping[str, Any], section: Mapping[str, Any]) -> FieldText:
    """Return a field of the JSON Schema in words.

    Raises ValueError for a field that was declared without description or example.
    """
    for key in ("description", "examples"):
        if key not in field:
            raise ValueError(f"{section['title']}.{name} has no {key}: give it one in planner/spec/")
    is_plain = "$ref" not in field and field.get("default") is not None
    return FieldText(
        name=name,
        takes=_describe_type(field),
        units=tuple(_list_units(field)),
        default=_as_in_spec(field["default"]) if is_plain else None,
        is_required=name in section.get("required", []),
        description=field["description"],
        example=_as_in_spec(field["examples"][0]),
    )


def _describe_section(section: Mapping[str, Any], paths: Sequence[str]) -> SectionText:
    fields = [describe_field(name, field, section) for name, field in section["properties"].items()]
    return SectionText(paths, section["description"], fields)


def _collect_paths(path: str, section: Any, named: Mapping[str, Any], paths: dict[str, list[str]]) -> None:
    """Add `section`, which is at `path`, and the sections inside it to `paths`: section title -> its paths."""
    paths.setdefault(section["title"], []).append(path)
    for name, field in section["properties"].items():
        text = json.dumps(field)
        suffix = "[]" if '"items"' in text else ""
        for title in re.findall(r"#/\$defs/(\w+)", text):
            _collect_paths(f"{path}.{name}{suffix}".lstrip("."), named[title], named, paths)


def _options(field: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = field.get("anyOf", field.get("oneOf", ()))
    return found


def _list_units(field: Mapping[str, Any]) -> Iterator[str]:
    """Yield the units in which a field of the schema takes a quantity, such as GB."""
    for option in _options(field):
        yield from _list_units(option)
    if found := UNITS.search(field.get("pattern", "")):
        yield from found[1].split("|")


def _describe_type(field: Mapping[str, Any]) -> str:
    """Return what a field may hold in a few words, such as `a whole number, 1 to 64`."""
    if options := _options(field):
        return " or ".join(filter(None, map(_describe_type, options)))
    if "$ref" in field:
        return "a section"
    if "const" in field or "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    if "pattern" in field:
        units = list(_list_units(field))
        return f"a number and {', '.join(units)}" if units else "text of a fixed form"
    if field["type"] == "array":
        return _takes_list(_describe_type(field["items"]))
    limits = f", {field['minimum']:,} to {field['maximum']:,}" if "maximum" in field else ""
    return "" if field["type"] == "null" else PLAIN_TYPES[field["type"]] + limits


def _takes_list(item: str) -> str:
    plain = item.removeprefix("a ")
    return f"a list of {plain}s" if plain.isalpha() else f"a list, each {item}"


def _as_in_spec(value: Any) -> str:
    """Return `value` as a user would write it in a spec."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_as_in_spec(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_in_spec, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The spec's JSON Schema as a list of what a spec can hold: each field, and each kind of value in it.

A field is a dotted path, with `[]` for the items of a list; a kind is an enum's value, true or false, null, text, a
section, items, and of a range its least, its most and what lies between. What a random spec should be able to draw and
what it drew are told by the same names, so that the two can be compared.
"""

from collections.abc import Iterator

from planner.spec.schema import Spec

__all__ = ["SCHEMA", "all_kinds", "fields_in", "kinds_in", "options", "property_schemas"]

SCHEMA = Spec.model_json_schema()


def options(schema):
    """What a value may be: `schema` with references resolved, one by one where there is a choice."""
    if "$ref" in schema:
        return options(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    choices = schema.get("anyOf", schema.get("oneOf", []))
    return [option for choice in choices for option in options(choice)] or [schema]


def property_schemas(section):
    """The fields of a section, by name; none where a value is no section."""
    return next((option["properties"] for option in options(section) if "properties" in option), {})


def all_kinds(schema=SCHEMA, path="") -> Iterator[tuple[str, str]]:
    """Every field of the schema with every kind of value that it may have."""
    for option in options(schema):
        yield from ((path, kind) for kind in _kinds_of(option))
        for name, field in option.get("properties", {}).items():
            yield from all_kinds(field, f"{path}.{name}".lstrip("."))
        if "items" in option:
            yield from all_kinds(option["items"], f"{path}[]")


def kinds_in(value, schema=SCHEMA, path="") -> Iterator[tuple[str, str]]:
    """Those that are in `value`; wrong ones have no name."""
    for field_path, each, field in fields_in(value, schema, path):
        yield from ((field_path, kind) for option in options(field) if (kind := _kind(each, option)))


def fields_in(value, schema=SCHEMA, path=""):
    """Each field in `value` that the schema has: path, value, schema; sections before what is in them."""
    yield path, value, schema
    for option in options(schema):
        if isinstance(value, dict) and "properties" in option:
            for name in value.keys() & option["properties"].keys():
                yield from fields_in(value[name], option["properties"][name], f"{path}.{name}".lstrip("."))
        if isinstance(value, list) and "items" in option:
            for item in value:
                yield from fields_in(item, option["items"], f"{path}[]")


def _kinds_of(option):
    """The kinds of value that one option takes."""
    if "enum" in option:
        return [repr(value) for value in option["enum"]]
    if "const" in option:
        return [repr(option["const"])]
    return {
        "boolean": ["False", "True"],
        "integer": ["least", "between", "most"],
        "number": ["least", "between", "most"],
        "string": ["text"],
        "array": ["items"],
        "object": ["section"],
        "null": ["null"],
    }[option["type"]]


def _kind(value, option):
    """Which kind `value` is of those that `option` takes; None where it is none."""
    if "enum" in option or "const" in option:
        return repr(value) if value in option.get("enum", [option.get("const")]) else None
    if isinstance(value, bool) or value is None:
        return {"boolean": repr(value)}.get(option["type"]) if value is not None else _null(option)
    if option["type"] in ("integer", "number") and isinstance(value, int | float):
        return _part_of_range(value, option)
    plain = {"string": (str, "text"), "array": (list, "items"), "object": (dict, "section")}
    wanted, kind = plain.get(option["type"], (tuple, None))
    return kind if isinstance(value, wanted) else None


def _null(option):
    return "null" if option["type"] == "null" else None


def _part_of_range(value, option):
    least, most = option["minimum"], option["maximum"]
    if value in (least, most):
        return "least" if value == least else "most"
    return "between" if least < value < most else None

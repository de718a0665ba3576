"""`docs/spec.md`: every field of the spec, from its JSON Schema."""

import json
import re

from tests.planner.spec.spec_schema import SCHEMA

__all__ = ["spec_page"]

HEAD = """# The spec

<!-- Written by `python -m tests.docs`: change what it is made from. -->

A spec is one YAML file. Unknown keys are errors, and text is never taken for a number. `tidemill schema` prints the
same as JSON Schema, for editors. Rules between fields are on the page of [rules](rules.md).

An environment needs no copy of the spec. `tidemill render base.yaml -f prod.yaml -o prod` lays an overlay over it, and
so does every command that takes a spec:

```yaml
# prod.yaml
name: chat-prod
cluster: {nodes: 22, rack_size: null}
kubernetes: {namespace: prod, image: registry.example.com/runtime:2}
```

Mappings merge key by key. Any other value, a list too, replaces what is there. `null` takes it away, so that the
default holds. `-f` may be repeated, and later files win. Files that an overlay names are relative to its own folder.
The result is the same as of one spec that says all of it, digests included. A mistake is told in the file and line
that it was written in."""
FIELDS = "| field | takes | default | is | example |\n|---|---|---|---|---|"
UNITS = re.compile(r"\(([\w/|]+)\)\$$")  # at the end of a quantity's pattern


def spec_page() -> str:
    """Every field of the spec: a table for each section, outermost first."""
    sections: dict[str, list[str]] = {}
    _collect("", SCHEMA, sections)
    parts = [HEAD]
    for title, paths in sections.items():
        section = SCHEMA if title == SCHEMA["title"] else SCHEMA["$defs"][title]
        rows = [_field_row(name, field, section) for name, field in section["properties"].items()]
        parts.append(f"## {_heading(paths)}\n\n{section['description']}\n\n{FIELDS}\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _collect(path, section, sections):
    """Add `section` and those below it: title -> the paths at which it stands."""
    sections.setdefault(section["title"], []).append(path)
    for name, field in section["properties"].items():
        for title in re.findall(r"#/\$defs/(\w+)", json.dumps(field)):
            suffix = "[]" if '"items"' in json.dumps(field) else ""
            _collect(f"{path}.{name}{suffix}".lstrip("."), SCHEMA["$defs"][title], sections)


def _heading(paths):
    return ", ".join(f"`{path}`" for path in dict.fromkeys(paths)) if paths != [""] else "The whole"


def _field_row(name, field, section):
    """One row. Raises ValueError for a field that says nothing of itself: pydantic leaves out what is not given."""
    for key in ("description", "examples"):
        if key not in field:
            raise ValueError(f"{section['title']}.{name} has no {key}: give it one in planner/spec/")
    is_plain = "$ref" not in field and field.get("default") is not None
    default = f"`{_value(field['default'])}`" if is_plain else ""
    if name in section.get("required", []):
        default = "**required**"
    cells = [f"`{name}`", _takes(field), default, field["description"], f"`{_value(field['examples'][0])}`"]
    return f"| {' | '.join(cells)} |"


def _takes(field):
    """What a field may hold, in a few words."""
    if "anyOf" in field or "oneOf" in field:
        return " or ".join(filter(None, map(_takes, field.get("anyOf", field.get("oneOf")))))
    if "$ref" in field:
        return "a section"
    if "const" in field or "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    if "pattern" in field:
        units = UNITS.search(field["pattern"])
        return f"a number and {', '.join(units[1].split('|'))}" if units else "text of a fixed form"
    if field["type"] == "array":
        item = _takes(field["items"])
        plain = item.removeprefix("a ")
        return f"a list of {plain}s" if plain.isalpha() else f"a list, each {item}"
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "`true`, `false`",
        "object": "a mapping",
    }
    limits = f", {field['minimum']:,} to {field['maximum']:,}" if "maximum" in field else ""
    return "" if field["type"] == "null" else words[field["type"]] + limits


def _value(value):
    """As one writes it in a spec."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)

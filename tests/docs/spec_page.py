"""`docs/spec.md`: every field of the spec, section by section, as `tidemill explain` has them."""

from planner.guide.fields import sections

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


def spec_page() -> str:
    """Every field of the spec: a table for each section, outermost first."""
    parts = [HEAD]
    for section in sections():
        rows = [_row(field) for field in section.fields]
        parts.append(f"## {_heading(section.paths)}\n\n{section.description}\n\n{FIELDS}\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _heading(paths):
    return ", ".join(f"`{path}`" for path in paths) if paths != ("",) else "The whole"


def _row(field):
    default = "**required**" if field.is_required else f"`{field.default}`" if field.default is not None else ""
    cells = [f"`{field.name}`", field.takes, default, field.description, f"`{field.example}`"]
    return f"| {' | '.join(cells)} |"

"""`tidemill explain`: describe a rule or a field of the spec, as JSON and as text."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from planner.guide.fields import field_paths, find_section, names_elsewhere
from planner.guide.rules import RETIRED, rules, rules_about
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import closest_choice

WIDTH = 110  # assumed: columns of a terminal on which plans are read


def explain(name: str) -> dict[str, Any]:
    """Return the description of the rule or field called `name`. Raises CallError if there is neither.

    A field's name is its dotted path. In it, the items of a list may be written `nodes[]`, `nodes.0` or `nodes`.
    """
    if name in rules():
        return {"rule": name} | {key: each for key, each in asdict(rules()[name]).items() if key != "id"}
    path = _listed_path(name)
    if path is None:
        raise _unknown(name)
    section, field = find_section(path), field_paths()[path.removesuffix("[]")]
    elsewhere = [{"names": row.names, "write": row.write} for row in names_elsewhere(path)]
    found = asdict(field) | {"elsewhere": elsewhere, "rules": rules_about(path)}
    found = {"field": path, **{key: each for key, each in found.items() if key != "name"}}
    if section:
        found["section"] = section.description
        found["fields"] = {each.name: each.description for each in section.fields}
    return found


def explanation_text(found: dict[str, Any]) -> str:
    """Return the result of `explain` as text for people."""
    if "rule" in found:
        head = f"{found['rule']}: {found['group']}"
        rows = [("level", found["level"]), ("severity", found["severity"])]
        rows += [("checks", each) for each in found["checks"]]
        rows += [("message", found["example"]), ("fields", ", ".join(found["fields"]))]
        return "\n".join([head, *_aligned_lines(rows)]) + "\n"
    rows = [
        ("takes", found["takes"].replace("`", "")),
        ("default", "none, it is required" if found["is_required"] else found["default"] or "none"),
        ("unit", ", ".join(found["units"])),
        ("example", f"{found['field'].rpartition('.')[2].removesuffix('[]')}: {found['example']}"),
        *(("elsewhere", _elsewhere_text(**each)) for each in found["elsewhere"]),
        ("rules", ", ".join(found["rules"])),
    ]
    parts = [textwrap.fill(f"{found['field']}: {found['description']}", WIDTH), *_aligned_lines(rows)]
    if "section" in found:
        parts += ["", found["section"], *_aligned_lines(found["fields"].items())]
    return "\n".join(parts) + "\n"


def _elsewhere_text(names: Sequence[str], write: str) -> str:
    return f"{', '.join(names)}: write {write}" if " " in write else ", ".join(names)


def _aligned_lines(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield lines with the label and text of each row that has a text. Long texts continue on indented lines."""
    filled = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in filled), default=0) + 2
    for label, text in filled:
        yield textwrap.fill(
            " ".join(text.split()),
            WIDTH,
            initial_indent=f"  {label:<{width}}",
            subsequent_indent=" " * (width + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _listed_path(name: str) -> str | None:
    """Return the path of the field `name`, with `[]` for list items as in docs/spec.md; None if there is no field."""
    bare = _without_items(name)
    return next((path for path in field_paths() if name == path or bare == _without_items(path)), None)


def _without_items(path: str) -> str:
    return re.sub(r"\[\]|\.\d+(?=\.|$)", "", path)


def _unknown(name: str) -> CallError:
    if name in RETIRED:
        reason, fix = "the id is retired: an older version had it", "see the messages of this version"
    else:
        reason, fix = "no rule has this id, and the spec has no such field", _suggest(name)
    return CallError([Finding(name, None, "S921 is neither a rule nor a field", reason, fix).at("tidemill explain")])


def _suggest(name: str) -> str:
    """Suggest fields with the same last part as `name`, else the field or rule that is spelt most like `name`."""
    last = name.rpartition(".")[2]
    alike = [path for path in field_paths() if path.rpartition(".")[2] == last]
    if not alike:
        names = [*field_paths(), *rules()]
        near = closest_choice(name, names)
        alike = [near] if near else get_close_matches(name, names, n=1)
    example = "write an id such as S501, or a path such as decode.ep_size"
    return f"did you mean {' or '.join(alike[:3])}?" if alike else example

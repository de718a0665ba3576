"""`tidemill explain`: what a rule or a field is, as JSON and as text."""

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

__all__ = ["explain", "explanation_text"]

WIDTH = 110  # assumed: of a terminal on which plans are read


def explain(name: str) -> dict[str, Any]:
    """Return what is known of the rule or field called `name`. Raises CallError if there is neither.

    A field is a dotted path. The items of a list may be written `nodes[]`, by a number or not at all.
    """
    if name in rules():
        return {"rule": name} | {key: each for key, each in asdict(rules()[name]).items() if key != "id"}
    path = _listed_path(name)
    if path is None:
        raise _unknown(name)
    section, field = find_section(path), field_paths()[path.removesuffix("[]")]
    elsewhere = [{"names": row.names, "write": row.write} for row in names_elsewhere(path)]
    told = asdict(field) | {"elsewhere": elsewhere, "rules": rules_about(path)}
    told = {"field": path, **{key: each for key, each in told.items() if key != "name"}}
    if section:
        told["section"] = section.description
        told["fields"] = {each.name: each.description for each in section.fields}
    return told


def explanation_text(told: dict[str, Any]) -> str:
    """Return what `explain` found, for people."""
    if "rule" in told:
        head = f"{told['rule']}: {told['group']}"
        rows = [("level", told["level"]), ("severity", told["severity"])]
        rows += [("checks", each) for each in told["checks"]]
        rows += [("message", told["example"]), ("fields", ", ".join(told["fields"]))]
        return "\n".join([head, *_lines(rows)]) + "\n"
    rows = [
        ("takes", told["takes"].replace("`", "")),
        ("default", "none, it is required" if told["is_required"] else told["default"] or "none"),
        ("unit", ", ".join(told["units"])),
        ("example", f"{told['field'].rpartition('.')[2].removesuffix('[]')}: {told['example']}"),
        *(("elsewhere", _elsewhere_text(**each)) for each in told["elsewhere"]),
        ("rules", ", ".join(told["rules"])),
    ]
    parts = [textwrap.fill(f"{told['field']}: {told['description']}", WIDTH), *_lines(rows)]
    if "section" in told:
        parts += ["", told["section"], *_lines(told["fields"].items())]
    return "\n".join(parts) + "\n"


def _elsewhere_text(names: Sequence[str], write: str) -> str:
    return f"{', '.join(names)}: write {write}" if " " in write else ", ".join(names)


def _lines(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a label and its text for each row with a text; a long text goes on below itself."""
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
    """Return `name` as the page of the spec writes it, with `[]` for items; None for no field."""
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
    """Suggest fields with the last part of `name`, else what is spelt most like it."""
    last = name.rpartition(".")[2]
    alike = [path for path in field_paths() if path.rpartition(".")[2] == last]
    if not alike:
        names = [*field_paths(), *rules()]
        near = closest_choice(name, names)
        alike = [near] if near else get_close_matches(name, names, n=1)
    example = "write an id such as S501, or a path such as decode.ep_size"
    return f"did you mean {' or '.join(alike[:3])}?" if alike else example

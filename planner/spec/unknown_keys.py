"""Keys that the spec does not have: which field was meant, and why there is none.

A key may be misspelt, called otherwise by an engine or Kubernetes (`other_names.py`), in the wrong section, or at the
wrong indentation. A field that was meant is there under a wrong name, so that nobody calls it missing too.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import ErrorDetails

from planner.facts.terms import PHASES
from planner.problems.errors import Violation
from planner.problems.fix import HERE, Fix, close_to, removal
from planner.spec.declared import choices_at, path_of, required_in, section_at, section_of
from planner.spec.instead import as_yaml
from planner.spec.meant import time_of_day
from planner.spec.other_names import (
    KUBERNETES_KEYS,
    QUANTITIES,
    as_we_say,
    is_not_planned_yet,
    of_the_server,
    qualifiers_of,
    said_by_flag,
    said_by_object,
    said_by_resources,
    unwrapped,
    value_as_we_say,
    what_instead_of,
    why_we_have_no,
)
from planner.spec.schema import UNION_TAGS, Spec

__all__ = ["fields_meant", "unknown_key"]


def unknown_key(detail: ErrorDetails, data: Mapping[str, Any]) -> Violation:
    """Return what is said about a key that Pydantic does not know in `data`."""
    parent, known = path_of(detail["loc"][:-1]), list(section_at(detail["loc"]).model_fields)
    path, meant = path_of(detail["loc"]), fields_meant(detail, data)
    ours = as_we_say(path.rpartition(".")[2])
    reason = why_we_have_no(path) or f"known keys: {', '.join(known)}"
    fix: Fix | str = what_instead_of(path) or removal()
    if path in KUBERNETES_KEYS:
        reason = "a spec is no Kubernetes object, tidemill render writes those"
        fix = Fix(_instead(meant), ({HERE: None, **meant},))
    elif _level_above(detail, data):
        reason, fix = "the spec stands a level too deep below it", Fix("take the level out", ({HERE: None, **meant},))
    elif not_indented := _not_indented(detail, data):
        section = next(iter(not_indented)).partition(".")[0]
        reason, fix = f"{section} above it has nothing below it", Fix("indent it", ({HERE: None, **meant},))
    elif said := _said_by_flag(detail, data):
        reason, fix = said[1], Fix(_written(said[0]) or "leave it out", ({HERE: None, **meant},))
    elif meant and (of_server := _of_the_server(detail, data)):
        reason, fix = of_server
    elif meant:
        fix = _renaming(detail["input"], meant, parent)
        if not all(each.rpartition(".")[0] == parent for each in meant):
            reason = "it belongs elsewhere"
        elif ours in known:
            reason = "it has another name here"
    elif ours in known:
        reason = f"{ours} says it already"
    return Violation(path, detail["input"], f"S201 is not a key of {parent or 'the spec'}", reason, fix)


def fields_meant(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The field that an unknown key is probably meant to be, unless that is given as well, with what it says.

    None or several, by path, for the keys of a Kubernetes object.
    """
    path = path_of(detail["loc"])
    if path in KUBERNETES_KEYS:
        said = said_by_object(str(detail["loc"][0]), detail["input"])
        return {path: value for path, value in said.items() if path.partition(".")[0] not in data}
    *parents, key = (part for part in detail["loc"] if part not in UNION_TAGS)
    if by_flag := _said_by_flag(detail, data):
        return {path_of((*parents, each)): number for each, number in by_flag[0].items()}
    if moved := _level_above(detail, data) or _not_indented(detail, data):
        return moved
    given: Any = data
    for part in parents:
        given = given[part]
    fields = section_at(detail["loc"]).model_fields
    free = [name for name in fields if name not in given]
    ours = as_we_say(str(key))
    if ours in free:
        path = path_of((*parents, ours))
        return {path: _in_our_form(path, detail["input"])}
    if path.startswith("kubernetes.resources.") and key in QUANTITIES and "unit" in free:
        said = said_by_resources(given)
        return {"kubernetes.resources.unit": said} if said else {}
    folder = unwrapped(detail["input"])
    if path == "kubernetes.hostPath" and "volumes" in free and isinstance(folder, str):
        return {"kubernetes.volumes": [{"host_path": folder, "mount_path": folder}]}
    if ours in fields or why_we_have_no(path):
        return {}
    elsewhere = _elsewhere(ours or str(key), data)
    free = [name for name in free if section_of(fields[name]) or not isinstance(detail["input"], dict)]
    free = [name for name in free if qualifiers_of(str(key)) <= qualifiers_of(name)]
    close = None if elsewhere else close_to(key, free, cutoff=0.6)
    return {path_of((*parents, close)): detail["input"]} if close else dict.fromkeys(elsewhere, detail["input"])


def _renaming(value: Any, meant: Mapping[str, Any], parent: str) -> Fix:
    """Say which keys were meant, and what to write there where that is not `value`."""
    short = {path.removeprefix(f"{parent}."): each for path, each in meant.items()}
    is_same = all(each == value for each in meant.values())
    words = f"did you mean {' and '.join(short)}?" if is_same else _written(short)
    return Fix(words, ({HERE: None, **meant},))


def _written(values: Mapping[str, Any]) -> str:
    """Say what to write, as YAML; empty where it is nothing."""
    words = " and ".join(f"{path}: {as_yaml(value)}" for path, value in values.items())
    return words and f"write {words}"


def _instead(meant: Mapping[str, Any]) -> str:
    """What to write in place of a key of a Kubernetes object."""
    if any(isinstance(value, dict | list) for value in meant.values()):
        return "write its keys at the top level"
    return _written(meant) or "remove it"


def _said_by_flag(detail: ErrorDetails, data: Mapping[str, Any]) -> tuple[Mapping[str, int], str] | None:
    """What an engine's flag of a phase says together with those beside it."""
    section, key = detail["loc"][0], str(detail["loc"][-1])
    return said_by_flag(key, data[section]) if section in PHASES and len(detail["loc"]) == 2 else None


def _of_the_server(detail: ErrorDetails, data: Mapping[str, Any]) -> tuple[str, Fix | str] | None:
    """Why a limit of a whole server is another number here, and which."""
    section, key = detail["loc"][0], str(detail["loc"][-1])
    if section not in PHASES or len(detail["loc"]) != 2:
        return None
    found = of_the_server(key, detail["input"], data[section])
    if found is None:
        return None
    (number, reason), ours = found, as_we_say(key)
    if number is None:
        return reason, f"write {ours}, as {key} / dp_size"
    return reason, Fix(f"write {ours}: {number}", ({HERE: None, f"{section}.{ours}": number},))


def _level_above(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a spec that stand below an unknown key, where the spec lacks them and they are most of one."""
    below = detail["input"] if len(detail["loc"]) == 1 and isinstance(detail["input"], dict) else {}
    ours = {key: value for key, value in below.items() if key in Spec.model_fields and key not in data}
    required = required_in(Spec)
    return ours if 2 * sum(key in ours for key in required) > len(required) else {}


def _not_indented(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field of the section above it, which has nothing below it, in that section."""
    key, above = detail["loc"][-1], None
    for name in data if len(detail["loc"]) == 1 else ():
        if name == key:
            break
        above = name if name in Spec.model_fields else above
    section = section_of(Spec.model_fields[above]) if above and data[above] is None else None
    return {f"{above}.{key}": detail["input"]} if section and key in section.model_fields else {}


def _in_our_form(path: str, value: Any) -> Any:
    """A value under another key's name, as our key takes it: `fp8_e4m3` is `fp8` here."""
    if path.endswith(".at"):
        return time_of_day(value) or value
    choices = choices_at(path)
    if choices and isinstance(value, str) and not is_not_planned_yet(path, value):
        return close_to(value_as_we_say(path, value), choices) or value
    return unwrapped(value)


def _elsewhere(name: str, data: Mapping[str, Any]) -> list[str]:
    """Where the field `name` belongs that stands in a wrong section: in each phase that there is, or in one place."""
    homes = {"": Spec} | {key: section for key, field in Spec.model_fields.items() if (section := section_of(field))}
    found = []
    for home, section in homes.items():
        there = data if not home else data.get(home, None if home in PHASES else {})
        if name in section.model_fields and isinstance(there, dict) and name not in there:
            found.append(path_of((home, name)).lstrip("."))
    in_phases = all(path.partition(".")[0] in PHASES for path in found)
    return found if in_phases or len(found) == 1 else []

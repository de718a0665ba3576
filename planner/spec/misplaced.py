"""Say where a field belongs that stands in the wrong section.

It knows the spec's fields and what is given: what a key means that is no field is `key_answers.py`'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_origin

from planner.facts.terms import PHASES
from planner.spec.declared import field_at, path_of, required_in, section_of
from planner.spec.places import in_full
from planner.spec.schema import Spec

__all__ = ["entered", "fields_of", "given_elsewhere", "homes_of", "may_hold", "turned_on"]


def homes_of(name: str, data: Mapping[str, Any]) -> list[str]:
    """Return where the misplaced field `name` belongs: in each phase that stays, or in one place."""
    homes = {"": Spec} | {key: section for key, field in Spec.model_fields.items() if (section := section_of(field))}
    found, left = [], _phases_that_stay(data)
    for home, section in homes.items():
        if home in PHASES and home not in left:
            continue
        there = data if not home else in_full(data, [f"{home}.{name}"]).get(home, None if home in PHASES else {})
        if name in section.model_fields and isinstance(there, dict) and name not in there:
            found.append(path_of((home, name)).lstrip("."))
    in_phases = all(path.partition(".")[0] in PHASES for path in found)
    if not any(name in section.model_fields for section in homes.values()):
        found = _deeper(name, data)
    return found if in_phases or len(found) == 1 else []


def turned_on(name: str, value: Any, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section that `true` turns on, where it stands elsewhere and has a default for everything."""
    found = homes_of(name, data) if value is True else []
    sections = {each: section_of(field_at(each)) for each in found}
    return {each: {} for each, section in sections.items() if section and not required_in(section)}


def entered(meant: Mapping[str, Any], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `meant` with sections that are written in short in full: no key can be added to `schedule: auto`."""
    found: dict[str, Any] = {}
    for path, value in meant.items():
        section, _, key = path.partition(".")
        full = in_full(data, [path]).get(section)
        if key and isinstance(data.get(section), str) and isinstance(full, dict):
            found[section] = {**full, key: value}
        else:
            found[path] = value
    return found


def given_elsewhere(name: str, data: Mapping[str, Any]) -> list[str]:
    """Return where the field `name` of other sections is given already."""
    sections = {home: in_full(data, [f"{home}.{name}"]).get(home) for home, field in Spec.model_fields.items()}
    found = {home: there for home, there in sections.items() if isinstance(there, dict) and there.get(name) is not None}
    return [f"{home}.{name}" for home in found if name in fields_of(home)]


def fields_of(home: str) -> Sequence[str]:
    """Return the names of the fields of the section `home`; none where it is no section."""
    section = section_of(Spec.model_fields[home])
    return list(section.model_fields) if section else []


def may_hold(path: str, value: Any) -> bool:
    """Whether a section at `path` would not get a number in its place."""
    return section_of(field_at(path)) is None or not isinstance(value, int | float)


def _deeper(name: str, data: Mapping[str, Any]) -> list[str]:
    """Return where the field `name` is of a section within a section, which may be there and is no list."""
    found = []
    for home, field in Spec.model_fields.items():
        section, there = section_of(field), data.get(home, {})
        for key, inner in section.model_fields.items() if section and isinstance(there, dict) else ():
            given = there.get(key, {})
            is_free = isinstance(given, dict) and name not in given and get_origin(inner.annotation) is not list
            if is_free and (below := section_of(inner)) and name in below.model_fields and not required_in(below):
                found.append(f"{home}.{key}.{name}")
    return found


def _phases_that_stay(data: Mapping[str, Any]) -> Sequence[str]:
    """Return the phases without those that S507 removes first: a mixed unit's work is not done twice."""
    given = [phase for phase in PHASES if phase in data]
    if "mixed" not in given:
        return given
    return ["mixed"] if len(given) < len(PHASES) else [phase for phase in PHASES if phase != "mixed"]

"""Check that a value can be written at a dotted path, by the spec's fields and its present values.

A section may have a short form, `schedule: auto` or `model: deepseek-r1`. A path below it means the full form.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from planner.problems.fix import closest_choice
from planner.spec.declared import section_of, types_in
from planner.spec.schema import Spec
from planner.spec.undecided import AUTO

# Sections that have a short form -> the field whose value is written in it.
SHORT_FORMS = {"schedule": "windows", "model": "catalog", "engine": "name"}


@dataclass(frozen=True)
class NoPlace:
    """The reason why no value can be written at a path, and the path that was probably meant, if known."""

    reason: str
    meant: str | None = None


def expand_short_forms(data: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return `data` with the full form of each section into which one of `paths` leads."""
    entered = {section for section, _, rest in (path.partition(".") for path in paths) if rest}
    short = {each: data[each] for each in SHORT_FORMS if each in entered and _is_short(each, data.get(each))}
    return {**data, **{section: {SHORT_FORMS[section]: value} for section, value in short.items()}}


def _is_short(section: str, value: Any) -> bool:
    return isinstance(value, str) and (section != "schedule" or value == AUTO)


def explain_no_place(path: str, data: Mapping[str, Any]) -> NoPlace | None:
    """Return why no value can be written at `path` in a spec with `data`; None if one can."""
    return _in_section(Spec, expand_short_forms(data, [path]), "", path.split("."))


def _in_section(section: type[BaseModel], there: Any, above: str, parts: Sequence[str]) -> NoPlace | None:
    name, rest = parts[0], parts[1:]
    field = section.model_fields.get(name)
    if field is None:
        return NoPlace(f"{above or 'the spec'} has no {name}", _meant(section, there, above, parts))
    path, value = f"{above}.{name}".lstrip("."), there.get(name) if isinstance(there, dict) else None
    return _in_field(field, value, path, rest) if rest else None


def _in_field(field: FieldInfo, value: Any, path: str, parts: Sequence[str]) -> NoPlace | None:
    section = section_of(field)
    if isinstance(value, list) or parts[0].isdecimal():
        return _in_list(field, value, path, parts)
    if section and isinstance(value, dict | None):
        return _in_section(section, value, path, parts)
    if section is None and (dict in types_in(field.annotation) or isinstance(value, dict)):
        return _in_plain(value, path, parts)
    return NoPlace(f"{path} has no fields" if value is None else f"{path} is {value}, which has no fields")


def _in_list(field: FieldInfo, value: Any, path: str, parts: Sequence[str]) -> NoPlace | None:
    if not isinstance(value, list):
        return NoPlace(f"{path} is no list here")
    if not parts[0].isdecimal() or int(parts[0]) >= len(value):
        return NoPlace(f"{path} has the items 0 to {len(value) - 1}")
    if len(parts) == 1:
        return None
    return _in_field(field, value[int(parts[0])], f"{path}.{parts[0]}", parts[1:])


def _in_plain(value: Any, path: str, parts: Sequence[str]) -> NoPlace | None:
    """Check a path into a mapping whose keys the user chooses; a key may contain dots."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return NoPlace(f"{path} is no mapping")  # it may be a secret, so it is not quoted
    whole = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    key = next((each for each in whole if each in value), parts[0])
    rest = parts[key.count(".") + 1 :]
    return _in_plain(value.get(key), f"{path}.{key}", rest) if rest else None


def _meant(section: type[BaseModel], there: Any, above: str, parts: Sequence[str]) -> str | None:
    """Return the path that was meant: of a similar field in this section, or of the only section with this field."""
    name, rest = parts[0], parts[1:]
    known = closest_choice(name, list(section.model_fields))
    if known is not None:
        found = None if _in_section(section, there, above, [known, *rest]) else [above, known, *rest]
        return ".".join(found).lstrip(".") if found else None
    homes = [key for key, field in Spec.model_fields.items() if name in _fields_of(field)]
    return ".".join([homes[0], *parts]) if len(homes) == 1 and not above else None


def _fields_of(field: FieldInfo) -> Iterable[str]:
    section = section_of(field)
    return section.model_fields if section else ()

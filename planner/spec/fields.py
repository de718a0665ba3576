"""What is wrong with single fields: Pydantic's verdict in our words, with the nearest fix.

Also hands the valid rest on (`CheckedFields.values`), so that the rules between fields can still be asked about
everything that is right, and a user sees all mistakes of a file in one go.

It knows the spec's fields but no rule between two of them: those are in `layout_rules.py`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError, WrapValidator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from planner.facts.quantities import QUANTITIES, Kind, as_we_spell
from planner.facts.terms import PHASES
from planner.problems.errors import Violation
from planner.problems.fix import HERE, Fix, close_to, did_you_mean, nearest, removal
from planner.spec.meant import fraction, thousandths, time_of_day, truth, whole_number
from planner.spec.other_names import (
    KUBERNETES_KEYS,
    as_we_say,
    is_not_planned_yet,
    said_by_flag,
    said_by_object,
    unwrapped,
    value_as_we_say,
    why_not_so,
    why_we_have_no,
)
from planner.spec.rule import Partial
from planner.spec.schema import AUTO, UNION_TAGS, Spec
from planner.spec.section import Section
from planner.spec.yaml import INTEGER

__all__ = ["CheckedFields", "check_fields"]

NOUNS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
NUMBERED = ("name", "rack", "leaf", "power")  # what is often called by a number, and is text
WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "bool_type": "true or false",
    "list_type": "a list",
}


@dataclass(frozen=True)
class CheckedFields:
    """What is wrong, and what is right: dotted path -> value, defaults included."""

    violations: list[Violation]
    values: dict[str, Any]
    misspelt: frozenset[str]  # paths of fields that are there under another key, and their sections


def check_fields(data: Mapping[str, Any]) -> CheckedFields:
    """Each field of `data` by itself. A misspelt key is one mistake: the field that was meant is not missing too."""
    details = _pydantic_errors(data)
    unknown = (detail for detail in details if detail["type"] == "extra_forbidden")
    misspelt = frozenset(path for detail in unknown for path in _meant(detail, data))
    violations = [_violation(detail, data) for detail in details if not _is_there(detail, misspelt)]
    wrong = {violation.path for violation in violations} | misspelt
    sections = {path.partition(".")[0] for path in misspelt}
    return CheckedFields(violations, dict(_values(Spec, data, wrong, prefix="")), misspelt | sections)


def _is_there(detail: ErrorDetails, misspelt: frozenset[str]) -> bool:
    """Whether a field that seems to be missing or empty is there under another key, or at another indentation."""
    path = _path(detail["loc"])
    if detail["type"] == "missing":
        return path in misspelt
    return detail["input"] is None and _is_wrong_below(path, set(misspelt))


def _pydantic_errors(data: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        Spec.model_validate(data)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _values(section: type[BaseModel], data: Any, wrong: set[str], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        if path in wrong or (name not in data and field.is_required()):
            continue
        inner = _section_of(field)
        value = data.get(name, {} if isinstance(field.default, Section) else field.default)
        if inner and isinstance(value, dict):
            yield from _values(inner, value, wrong, f"{path}.")
        elif inner and isinstance(value, list):
            yield path, _right_items(path, value, wrong)
        elif not (_is_undecided(field, value) or _is_wrong_below(path, wrong)):
            yield path, value


def _is_undecided(field: FieldInfo, value: Any) -> bool:
    """`auto`, where a number may be left to the planner: no rule can read it yet."""
    return value == AUTO and _may_be_auto(field)


def _may_be_auto(field: FieldInfo) -> bool:
    return any(isinstance(each, WrapValidator) for each in field.metadata)


def _is_too_long(value: Any) -> bool:
    """A number that the source has left as text."""
    return isinstance(value, str) and value.lstrip("+-").isdecimal() and not INTEGER.fullmatch(value)


def _is_quantity(field: FieldInfo) -> bool:
    return any(isinstance(each, BeforeValidator) for each in field.metadata)


def _is_wrong_below(path: str, wrong: set[str]) -> bool:
    return any(each.startswith(f"{path}.") for each in wrong)


def _right_items(path: str, items: list[Any], wrong: set[str]) -> list[Any]:
    """`items`, those with mistakes without them: the others' rules can still be asked."""
    mistakes: dict[int, set[str]] = {}
    for each in wrong:
        if each.startswith(f"{path}."):
            number, _, key = each.removeprefix(f"{path}.").partition(".")
            mistakes.setdefault(int(number), set()).add(key.partition(".")[0])
    right = list(items)
    for index, keys in mistakes.items():
        item = items[index] if isinstance(items[index], dict) else {}
        right[index] = Partial({key: value for key, value in item.items() if key not in keys})
    return right


def _violation(detail: ErrorDetails, data: Mapping[str, Any]) -> Violation:
    """Pydantic's `detail` in our four parts."""
    path, kind, value, limits = _path(detail["loc"]), detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return _missing(path, data)
    if kind == "extra_forbidden":
        return _unknown(detail, data)
    if kind in WANTED:
        rule = f"S203 must be {WANTED[kind]}{' or auto' if _may_be_auto(_field(path)) else ''}"
        found = f"it has {len(value)} characters" if _is_too_long(value) else f"it is {_noun(value)}"
        return Violation(path, value, rule, why_not_so(path, value) or found, _example(path, value))
    if kind == "string_pattern_mismatch":
        rule = "S209 must have another form"
        return Violation(path, value, rule, _sentence(_field(path)), _example(path, value))
    if kind in ("too_short", "too_long"):
        return _entries(path, value, limits)
    if kind == "quantity":
        return _not_a_quantity(path, value, limits["kind"])
    if kind == "quantity_range":
        rule = f"S205 must be at {limits['word']} {limits['bound']}"
        return Violation(path, value, rule, _sentence(_field(path)), nearest(limits["bound"]))
    if is_not_planned_yet(path, value):
        found = f"it is {' or '.join(map(str, _choices(path)))} so far"
        fix = "write what your checkpoint is in, if it is one of these"
        return Violation(path, value, "S211 is not planned yet", found, fix)
    if kind == "literal_error":
        choices = _choices(path)
        rule = f"S204 must be {' or '.join(map(str, choices))}"
        meant = value_as_we_say(path, value)
        return Violation(path, value, rule, "nothing else is understood", did_you_mean(meant, choices))
    return _out_of_range(path, value, kind, limits)


def _choices(path: str) -> list[Any]:
    """The words, or the one number, that the field at `path` takes."""
    literals = (each for each in _types(_field(path).annotation) if get_origin(each) is Literal)
    return list(chain.from_iterable(map(get_args, literals)))


def _not_a_quantity(path: str, value: Any, kind: Kind) -> Violation:
    reason = "a number alone could mean any of them" if _is_number(value) else "write a number and its unit"
    meant = as_we_spell(kind, value)
    fix = Fix(f"did you mean {meant}?", ({HERE: meant},)) if meant else _example(path, value)
    return Violation(path, value, f"S208 must be {QUANTITIES[kind]}", reason, fix)


def _missing(path: str, data: Mapping[str, Any]) -> Violation:
    field = _field(path)
    fix = _free_time(path, data) if path.startswith("schedule.windows.") else _example(path, None)
    return Violation(path, None, "S202 is required", _sentence(field), fix)


def _free_time(path: str, data: Mapping[str, Any]) -> Fix:
    """An example for a window without a time, at which no other window starts."""
    windows, own = data["schedule"]["windows"], int(path.split(".")[2])
    taken = {time_of_day(each["at"]) for each in windows if isinstance(each, dict) and "at" in each}
    minutes = (30 * step for step in range(17, 17 + 48))  # a day of half hours, from the field's example on
    times = [f"{each // 60 % 24:02}:{each % 60:02}" for each in minutes]
    free = [time for time in times if time not in taken] or times
    missing = [index for index, each in enumerate(windows) if not isinstance(each, dict) or "at" not in each]
    at = free[missing.index(own) % len(free)]
    return Fix(f"for example at: {at}", ({HERE: at},))


def _unknown(detail: ErrorDetails, data: Mapping[str, Any]) -> Violation:
    parent, known = _path(detail["loc"][:-1]), list(_section_at(detail["loc"]).model_fields)
    path, meant = _path(detail["loc"]), _meant(detail, data)
    ours = as_we_say(path.rpartition(".")[2])
    reason, fix = why_we_have_no(path) or f"known keys: {', '.join(known)}", removal()
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
    elif meant:
        fix = _renaming(detail["input"], meant, parent)
        if not all(each.rpartition(".")[0] == parent for each in meant):
            reason = "it belongs elsewhere"
        elif ours in known:
            reason = "it has another name here"
    elif ours in known:
        reason = f"{ours} says it already"
    return Violation(path, detail["input"], f"S201 is not a key of {parent or 'the spec'}", reason, fix)


def _renaming(value: Any, meant: Mapping[str, Any], parent: str) -> Fix:
    """Say which keys were meant, and what to write there where that is not `value`."""
    short = {path.removeprefix(f"{parent}."): each for path, each in meant.items()}
    is_same = all(each == value for each in meant.values())
    words = f"did you mean {' and '.join(short)}?" if is_same else _written(short)
    return Fix(words, ({HERE: None, **meant},))


def _written(values: Mapping[str, Any]) -> str:
    """Say what to write, as YAML; empty where it is nothing."""
    words = " and ".join(f"{path}: {_as_yaml(value)}" for path, value in values.items())
    return words and f"write {words}"


def _instead(meant: Mapping[str, Any]) -> str:
    """What to write in place of a key of a Kubernetes object."""
    if any(isinstance(value, dict | list) for value in meant.values()):
        return "write its keys at the top level"
    return _written(meant) or "remove it"


def _meant(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The field that an unknown key is probably meant to be, unless that is given as well, with what it says.

    None or several, by path, for the keys of a Kubernetes object.
    """
    path = _path(detail["loc"])
    if path in KUBERNETES_KEYS:
        said = said_by_object(str(detail["loc"][0]), detail["input"])
        return {path: value for path, value in said.items() if path.partition(".")[0] not in data}
    *parents, key = (part for part in detail["loc"] if part not in UNION_TAGS)
    if by_flag := _said_by_flag(detail, data):
        return {_path((*parents, each)): number for each, number in by_flag[0].items()}
    if moved := _level_above(detail, data) or _not_indented(detail, data):
        return moved
    given: Any = data
    for part in parents:
        given = given[part]
    fields = _section_at(detail["loc"]).model_fields
    free = [name for name in fields if name not in given]
    ours = as_we_say(str(key))
    if ours in free:
        path = _path((*parents, ours))
        return {path: _in_our_form(path, detail["input"])}
    folder = unwrapped(detail["input"])
    if path == "kubernetes.hostPath" and "volumes" in free and isinstance(folder, str):
        return {"kubernetes.volumes": [{"host_path": folder, "mount_path": folder}]}
    if ours in fields or why_we_have_no(path):
        return {}
    elsewhere = _elsewhere(ours or str(key), data)
    free = [name for name in free if _section_of(fields[name]) or not isinstance(detail["input"], dict)]
    close = None if elsewhere else close_to(key, free, cutoff=0.6)
    return {_path((*parents, close)): detail["input"]} if close else dict.fromkeys(elsewhere, detail["input"])


def _said_by_flag(detail: ErrorDetails, data: Mapping[str, Any]) -> tuple[Mapping[str, int], str] | None:
    """What an engine's flag of a phase says together with those beside it."""
    section, key = detail["loc"][0], str(detail["loc"][-1])
    return said_by_flag(key, data[section]) if section in PHASES and len(detail["loc"]) == 2 else None


def _level_above(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a spec that stand below an unknown key, where the spec lacks them and they are most of one."""
    below = detail["input"] if len(detail["loc"]) == 1 and isinstance(detail["input"], dict) else {}
    ours = {key: value for key, value in below.items() if key in Spec.model_fields and key not in data}
    required = [key for key, field in Spec.model_fields.items() if field.is_required()]
    return ours if 2 * sum(key in ours for key in required) > len(required) else {}


def _not_indented(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field of the section above it, which has nothing below it, in that section."""
    key, above = detail["loc"][-1], None
    for name in data if len(detail["loc"]) == 1 else ():
        if name == key:
            break
        above = name if name in Spec.model_fields else above
    section = _section_of(Spec.model_fields[above]) if above and data[above] is None else None
    return {f"{above}.{key}": detail["input"]} if section and key in section.model_fields else {}


def _in_our_form(path: str, value: Any) -> Any:
    """A value under another key's name, as our key takes it: `fp8_e4m3` is `fp8` here."""
    if path.endswith(".at"):
        return time_of_day(value) or value
    choices = _choices(path)
    if choices and isinstance(value, str) and not is_not_planned_yet(path, value):
        return close_to(value_as_we_say(path, value), choices) or value
    return unwrapped(value)


def _elsewhere(name: str, data: Mapping[str, Any]) -> list[str]:
    """Where the field `name` belongs that stands in a wrong section: in each phase that there is, or in one place."""
    homes = {"": Spec} | {key: section for key, field in Spec.model_fields.items() if (section := _section_of(field))}
    found = []
    for home, section in homes.items():
        there = data if not home else data.get(home, None if home in PHASES else {})
        if name in section.model_fields and isinstance(there, dict) and name not in there:
            found.append(_path((home, name)).lstrip("."))
    in_phases = all(path.partition(".")[0] in PHASES for path in found)
    return found if in_phases or len(found) == 1 else []


def _section_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The section that holds, or should hold, what stands at `location`."""
    parent = _path(location[:-1])
    section = _section_of(_field(parent)) if parent else Spec
    assert section
    return section


def _path(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location if part not in UNION_TAGS)


def _out_of_range(path: str, value: Any, kind: str, limits: Mapping[str, Any]) -> Violation:
    if kind == "string_too_short":
        return Violation(path, value, "S206 must not be empty", _sentence(_field(path)), _example(path, value))
    if kind == "string_too_long":
        rule = f"S207 must have at most {limits['max_length']} characters"
        fix = Fix("shorten it", ({HERE: value[: limits["max_length"]]},))
        return Violation(path, value, rule, f"it has {len(value)}", fix)
    word, bound = ("least", limits["ge"]) if "ge" in limits else ("most", limits["le"])
    return Violation(path, value, f"S205 must be at {word} {bound}", _sentence(_field(path)), nearest(bound))


def _entries(path: str, value: list[Any], limits: Mapping[str, Any]) -> Violation:
    if "min_length" in limits:
        rule, fix = f"S210 must have at least {limits['min_length']} entries", _example(path, value)
    else:
        most = limits["max_length"]
        rule, fix = f"S210 must have at most {most} entries", Fix("shorten it", ({HERE: value[:most]},))
    return Violation(path, value, rule, f"it has {len(value)}", fix)


def _field(path: str) -> FieldInfo:
    """The declaration of the field at `path`."""
    section: type[BaseModel] | None = Spec
    for name in path.split("."):
        if not name.isdecimal():  # an element of a list is declared with the list
            assert section
            field = section.model_fields[name]
            section = _section_of(field)
    return field


def _section_of(field: FieldInfo) -> type[Section] | None:
    """The section that `field` holds or, as `model` does, may hold, perhaps in a list."""
    return next((c for c in _types(field.annotation) if isinstance(c, type) and issubclass(c, Section)), None)


def _types(annotation: Any) -> Iterator[Any]:
    """`annotation` and all that it is made of."""
    yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


def _noun(value: Any) -> str:
    return "null" if value is None else NOUNS[type(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal())


def _sentence(field: FieldInfo) -> str:
    """The field's description, as the reason of a message."""
    assert field.description
    text = field.description.removesuffix(".")
    return text if text[1:2].isupper() else f"{text[0].lower()}{text[1:]}"


def _example(path: str, value: Any) -> Fix:
    """A value that is right: the one that was meant, if it is only misspelt or quoted, else the declared example."""
    name = path.rpartition(".")[2]
    field = _field(path)
    if _may_be_auto(field) and close_to(value, [AUTO]):
        return did_you_mean(value, [AUTO])
    meant = None if value is None or _is_quantity(field) else _meant_value(path, field, value)
    if meant is not None:
        return Fix(f"nearest: {_as_yaml(meant)}", ({HERE: meant},))
    if name.isdecimal():
        element = _element(field)
        return Fix(f"for example {_as_yaml(element)}", ({HERE: element},))
    example = _first_example(field)
    return Fix(f"for example {name}: {_as_yaml(example)}", ({HERE: example},))


def _meant_value(path: str, field: FieldInfo, value: Any) -> Any:
    """What `value` would be in the field's type and form; None where nobody can tell."""
    types = list(_types(field.annotation))
    if bool in types:
        return truth(value)
    if path.rpartition(".")[2] == "at":
        return time_of_day(value)
    if path.startswith("cluster.nodes.") and path.rpartition(".")[2] in NUMBERED and type(value) is int:
        return str(value)
    number = _number(path, types, value)
    return None if number is None else _plainest(_within(field, number))


def _number(path: str, types: Sequence[Any], value: Any) -> float | None:
    """What `value` would be in a field of `types`."""
    if int in types:
        return whole_number(value)
    halves = thousandths(value) if path.endswith(".cpus") else None
    return fraction(value) if halves is None and float in types else halves


def _plainest(number: float) -> float:
    """Return `number` as one writes it: without a fraction where it has none."""
    return int(number) if number == int(number) else number


def _within(field: FieldInfo, number: Any) -> Any:
    """`number`, or the end of the field's range that is nearest to it."""
    inner = (each.metadata for each in _types(field.annotation) if isinstance(each, FieldInfo))
    limits = [*field.metadata, *chain.from_iterable(inner)]
    least = [limit.ge for limit in limits if hasattr(limit, "ge")]
    most = [limit.le for limit in limits if hasattr(limit, "le")]
    return type(number)(max([min([number, *most]), *least]))


def _first_example(field: FieldInfo) -> Any:
    """As declared, or of a section the keys that it must have."""
    return field.examples[0] if field.examples else _section_example(_section_of(field))


def _element(field: FieldInfo) -> Any:
    """One element of the list that `field` is, or may be."""
    example = _first_example(field)
    return example[0] if isinstance(example, list) else _section_example(_section_of(field))


def _section_example(section: type[Section] | None) -> dict[str, Any]:
    assert section
    return {name: _first_example(field) for name, field in section.model_fields.items() if field.is_required()}


def _as_yaml(value: Any) -> str:
    """On one line, as one would write it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return value if isinstance(value, str) and not value.isdecimal() else json.dumps(value)

"""What to write in place of a wrong value: what was probably meant by it, else an example.

Only what was meant is a change (`problems/fix.py`). It knows forms of values, and no rule between fields.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from planner.facts.quantities import as_we_spell
from planner.problems.fix import HERE, Fix, close_to, did_you_mean, for_example, removal
from planner.spec.declared import (
    choices_at,
    field_at,
    is_quantity,
    may_be_auto,
    place_of,
    required_in,
    section_of,
    types_in,
)
from planner.spec.meant import (
    currency,
    day,
    engine_and_version,
    fraction,
    image,
    numeral,
    pairs,
    thousandths,
    time_of_day,
    tolerations,
    truth,
    variables,
    whole_number,
    windows,
)
from planner.spec.other_names import unwrapped, value_as_we_say
from planner.spec.section import Section
from planner.spec.undecided import AUTO
from planner.spec.why_not import is_not_planned_yet
from planner.spec.with_units import number_with_unit, words_of

__all__ = [
    "as_yaml",
    "example_at",
    "in_our_form",
    "instead_of",
    "instead_of_empty_text",
    "instead_of_nothing",
    "only_item",
]

GROUPED = re.compile(r"[0-9]{1,3}(?:[_ ][0-9]{3})+")  # 60_000_000; a comma might be a decimal one

# What is written in a form of its own elsewhere: place of the field -> its value in our form, or None.
FORMS: Mapping[str, Callable[[Any], Any]] = {
    "schedule": day,
    "schedule.windows.at": time_of_day,
    "schedule.other_days.windows.at": time_of_day,
    "cost.hours.at": time_of_day,
    "cost.supplies.hours.at": time_of_day,
    "cost.prices.hours.at": time_of_day,
    "cost.currency.code": currency,
    "kubernetes.image": image,
    "kubernetes.stage.image": image,
    "kubernetes.gateway.image": image,
    "kubernetes.env": variables,
    "kubernetes.annotations": pairs,
    "kubernetes.node_selector": pairs,
    "kubernetes.gateway.node_selector": pairs,
    **dict.fromkeys((f"cluster.nodes.{key}" for key in ("name", "rack", "leaf", "power")), numeral),
}


# Lists whose items stand under a key of their own elsewhere: path -> them as a list, or None.
KEYED: Mapping[str, Callable[[Any], Any]] = {
    "schedule.windows": windows,
    "schedule.other_days.windows": windows,
    "kubernetes.tolerations": tolerations,
    "kubernetes.gateway.tolerations": tolerations,
}


def instead_of(path: str, value: Any) -> Fix:
    """The value that was meant, if it is only misspelt, quoted or in another form, else an example."""
    field = field_at(path)
    if (may_be_auto(field) or path == "schedule") and close_to(value, [AUTO]):
        return did_you_mean(value, [AUTO])
    meant = None if value is None or is_quantity(field) else _meant_value(path, field, value)
    return example_at(path) if meant is None else Fix(f"nearest: {as_yaml(meant)}", ({HERE: meant},))


def only_item(field: FieldInfo, value: Any) -> Any:
    """Return the one value of a list that stands where a field takes no list; None for anything else."""
    is_alone = isinstance(value, list) and len(value) == 1 and get_origin(field.annotation) is not list
    return value[0] if is_alone and isinstance(value[0], str | int | float) else None


def in_our_form(path: str, value: Any) -> Any:
    """What stood under another name, as the field at `path` takes it: `fp8_e4m3` is `fp8` here; else `value` itself."""
    field, choices = field_at(path), choices_at(path)
    if path == "engine" and (named := engine_and_version(value)):
        return {"name": named[0], "version": named[1]}
    if choices and isinstance(value, str):
        to_come = is_not_planned_yet(path, value)
        return (None if to_come else close_to(value_as_we_say(path, value), choices)) or value
    meant = None if value is None or is_quantity(field) else _meant_value(path, field, value)
    if meant is None:
        return value if place_of(path) in FORMS else unwrapped(value)  # a label may be called name, too
    return meant


def instead_of_empty_text(path: str) -> Fix:
    """Leave out what need not be there, as empty text says nothing either."""
    field = field_at(path)
    is_element = path.rpartition(".")[2].isdecimal()
    may_be_left_out = is_element or (not field.is_required() and field.default is None)
    return removal(words="leave it out") if may_be_left_out else example_at(path)


def instead_of_nothing(path: str, field: FieldInfo) -> Fix:
    """The one value that there is, or the planner's choice, else an example."""
    is_ours = may_be_auto(field) and path != "cluster.nodes"  # the nodes that there are only the user knows
    choices = [AUTO] if is_ours else choices_at(path)
    if len(choices) != 1:
        return example_at(path)
    return Fix(f"write {path.rpartition('.')[2]}: {choices[0]}", ({HERE: choices[0]},))


def example_at(path: str) -> Fix:
    """The declared example, for what nobody can tell from what stands there."""
    field, name = field_at(path), path.rpartition(".")[2]
    if name.isdecimal():
        return for_example(as_yaml(_element(field)))
    return for_example(f"{name}: {as_yaml(_first_example(field))}")


def as_yaml(value: Any) -> str:
    """Return the value on one line, as one would write it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {as_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_yaml, value))}]"
    return value if isinstance(value, str) and fraction(value) is None else json.dumps(value)


def _meant_value(path: str, field: FieldInfo, value: Any) -> Any:
    """What `value` would be in the field's type and form; None where nobody can tell."""
    if form := FORMS.get(place_of(path)):
        return form(value)
    if (alone := only_item(field, value)) is not None:
        return alone if type(alone) in types_in(field.annotation) else _meant_value(path, field, alone)
    wrapped = _wrapped(path, field, value)
    if wrapped is not None:
        return wrapped
    types = list(types_in(field.annotation))
    if bool in types:
        return truth(value)
    number = _number(path, types, value, field)
    return None if number is None else _plainest(_within(field, number))


def _wrapped(path: str, field: FieldInfo, value: Any) -> Any:
    """What `value` would be with a list or a key around it that it lacks, or without one that it has in Kubernetes."""
    plain, section = unwrapped(value), section_of(field)
    is_element = path.rpartition(".")[2].isdecimal()
    if is_element and section and isinstance(value, str) and required_in(section) == ["name"]:
        return {"name": value}
    if section and isinstance(value, str) and field.annotation == (section | None):
        return _as_the_only_key(section, value)
    if section and get_origin(field.annotation) is not list and isinstance(value, list):
        return _as_one_mapping(value) or _as_one_text(field, value)
    if is_element or get_origin(field.annotation) is not list:
        is_taken_out = str in types_in(field.annotation) and isinstance(plain, str) and plain != value
        return plain if is_taken_out else None
    if path in KEYED and (keyed := KEYED[path](value)):
        return keyed
    if section:
        return [value] if isinstance(value, dict) and value.keys() >= set(required_in(section)) else None
    items = [each.strip() for each in plain.split(",")] if isinstance(plain, str) else []
    return items if items and all(items) else None


def _as_the_only_key(section: type[Section], value: str) -> dict[str, str] | None:
    """What `value` would be as the one key that `section` must have: `16Gi` of huge pages is their size."""
    required = required_in(section)
    if len(required) != 1:
        return None
    field = section.model_fields[required[0]]
    said = as_we_spell("bytes", value) if is_quantity(field) else value if field.annotation is str else None
    return {required[0]: said} if said else None


def _as_one_mapping(items: Sequence[Any]) -> dict[str, Any] | None:
    """Return the mapping that a list of mappings with keys of their own is; None for any other list."""
    mappings = [each for each in items if isinstance(each, dict) and each]
    keys = list(chain.from_iterable(mappings))
    is_one = bool(keys) and len(mappings) == len(items) and len(set(keys)) == len(keys)
    return {key: value for each in mappings for key, value in each.items()} if is_one else None


def _as_one_text(field: FieldInfo, items: Sequence[Any]) -> str | None:
    """Return the one text of a list where a field takes text, too: the name of a model."""
    return items[0] if str in types_in(field.annotation) and len(items) == 1 and isinstance(items[0], str) else None


def _number(path: str, types: Sequence[Any], value: Any, field: FieldInfo) -> float | None:
    """What `value` would be in a field of `types`."""
    words = value.strip() if isinstance(value, str) else ""
    if int in types:
        whole = whole_number(value)
        return words_of(path, words) if whole is None else whole
    halves = thousandths(value) if path.endswith(".cpus") else None
    plain = fraction(value) if halves is None and float in types else halves
    most = next((limit.le for limit in field.metadata if hasattr(limit, "le")), None)
    if plain is not None or float not in types:
        return plain
    said = number_with_unit(path, words, most)
    return whole_number(value) if said is None and GROUPED.fullmatch(words) else said


def _plainest(number: float) -> float:
    """Return `number` as one writes it: without a fraction where it has none."""
    return int(number) if number == int(number) else number


def _within(field: FieldInfo, number: Any) -> Any:
    """`number`, or the end of the field's range that is nearest to it."""
    inner = (each.metadata for each in types_in(field.annotation) if isinstance(each, FieldInfo))
    limits = [*field.metadata, *chain.from_iterable(inner)]
    least = [limit.ge for limit in limits if hasattr(limit, "ge")]
    most = [limit.le for limit in limits if hasattr(limit, "le")]
    return type(number)(max([min([number, *most]), *least]))


def _first_example(field: FieldInfo) -> Any:
    """Return the declared example, or for a section the keys that it must have."""
    return field.examples[0] if field.examples else _section_example(section_of(field))


def _element(field: FieldInfo) -> Any:
    """One element of the list that `field` is, or may be."""
    example = _first_example(field)
    return example[0] if isinstance(example, list) else _section_example(section_of(field))


def _section_example(section: type[Section] | None) -> dict[str, Any]:
    assert section
    return {name: _first_example(section.model_fields[name]) for name in required_in(section)}

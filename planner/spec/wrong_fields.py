"""Pydantic's errors for single fields in our words: the broken rule, the reason and the fix.

A fix has a change only if the value is right but written in another form: `"144"` for a number, one item for a list,
Kubernetes' spelling of a unit, a misspelt word or another tool's. Unknown keys are in `unknown_keys.py`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from planner.facts.quantities import QUANTITIES, Kind, counted, respell_quantity
from planner.problems.errors import MAX_LISTED
from planner.problems.finding import Finding, may_be_secret
from planner.problems.fix import HERE, Fix, did_you_mean
from planner.spec.declared import (
    choices_at,
    field_at,
    holds_list,
    may_be_auto,
    path_of,
    required_in,
    section_of,
    sentence_of,
    table_key,
)
from planner.spec.section import Section
from planner.spec.undecided import AUTO
from planner.spec.unknown_keys import explain_unknown_key, find_row
from planner.spec.yaml import MAX_DIGITS, read_plain

NOUNS = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "bool_type": "true or false",
    "list_type": "a list",
}
READ_AS: Mapping[str, tuple[type, ...]] = {"int_type": (int,), "float_type": (int, float), "bool_type": (bool,)}


def explain_errors(details: Sequence[ErrorDetails], data: Mapping[str, Any]) -> tuple[list[Finding], frozenset[str]]:
    """Return (findings for Pydantic's `details`, paths of fields that are in `data` under a misspelt key).

    A misspelt key is one mistake: the field that was meant is not also reported as missing.
    """
    listed = details[:MAX_LISTED]
    unknown = [explain_unknown_key(each, data) for each in listed if each["type"] == "extra_forbidden"]
    renamed = frozenset(path for each in unknown for change in each.changes for path in change if path != each.path)
    others = (each for each in listed if each["type"] != "extra_forbidden")
    wrong = [_field_finding(each) for each in others if not _is_renamed(each, renamed)]
    return [*unknown, *wrong, *_report_unlisted(len(details) - len(listed))], renamed


def _is_renamed(detail: ErrorDetails, renamed: frozenset[str]) -> bool:
    """Return whether Pydantic's error is about a missing field that is in the file under a misspelt key."""
    path = path_of(detail["loc"])
    return detail["type"] == "missing" and any(f"{each}.".startswith(f"{path}.") for each in renamed)


def _report_unlisted(number: int) -> list[Finding]:
    if number == 0:
        return []
    rule = f"S109 has more wrong fields than the {MAX_LISTED} that are listed"
    return [Finding("", None, rule, f"it has {number:,} more", "correct the listed ones first")]


def _field_finding(detail: ErrorDetails) -> Finding:
    """Return the finding for Pydantic's error about one field.

    A list or mapping in place of a value may hold secrets and is not quoted.
    """
    path, kind, value, limits = path_of(detail["loc"]), detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return Finding(path, None, "S202 is required", sentence_of(field_at(path)), example_at(path))
    rule, reason, fix = _explain_wrong_value(path, kind, value, limits)
    return Finding(path, None if isinstance(value, list | dict) else value, rule, reason, fix)


def _explain_wrong_value(path: str, kind: str, value: Any, limits: Mapping[str, Any]) -> tuple[str, str, Fix | str]:
    """Return (the rule that `value` breaks, the reason, the fix)."""
    field = field_at(path)
    if kind in WANTED:
        return (
            f"S203 must be {_describe_accepted(path, kind)}",
            f"it is {_noun(value)}",
            _offer_value(path, _convert_value(kind, value)),
        )
    if kind == "string_pattern_mismatch":
        return "S209 must have the form that the field requires", sentence_of(field), example_at(path)
    if kind == "quantity":
        return f"S208 must be {QUANTITIES[limits['kind']]}", *_quantity(path, limits["kind"], value)
    if kind == "literal_error":
        return f"S204 must be {' or '.join(map(str, choices_at(path)))}", *_choice(path, value)
    return f"S205 must {_bound_in_words(kind, limits)}", *_out_of_bounds(path, value, limits)


def _describe_accepted(path: str, kind: str) -> str:
    """Return words for the values that the field at `path` accepts, such as `a number or auto`.

    Pydantic would name only one of several forms, or a list's items.
    """
    field, wanted = field_at(path), [WANTED[kind]]
    if not path.rpartition(".")[2].isdecimal():
        wanted += ["a list"] if holds_list(field) else [WANTED["model_type"]] if section_of(field) else []
        wanted += [AUTO] if may_be_auto(field) else []
    return " or ".join(dict.fromkeys(wanted))


def _offer_value(path: str, meant: Any) -> Fix | str:
    """Return a fix that sets the field at `path` to `meant`.

    If `meant` is None, return an example of the field. If the value may be a secret, return advice in words only.
    """
    if meant is None:
        return example_at(path)
    words = "write it as a list" if isinstance(meant, list) else f"did you mean {as_yaml(meant)}?"  # it may be a secret
    return words if may_be_secret(path) else Fix(words, ({HERE: meant},))


def _quantity(path: str, kind: Kind, value: Any) -> tuple[str, Fix | str]:
    if respelled := respell_quantity(kind, value):
        return "the unit is spelt so here", _offer_value(path, respelled)
    is_number = type(value) in (int, float) or (isinstance(value, str) and value.isdecimal())
    return "a number alone could mean any of them" if is_number else f"it is {_noun(value)}", example_at(path)


def _choice(path: str, value: Any) -> tuple[str, Fix | str]:
    choices, field = choices_at(path), field_at(path)
    if value == AUTO and not field.is_required():
        return "the planner does not choose it", f"write one of these, or leave it out for {as_yaml(field.default)}"
    if row := find_row(table_key(path), str(value)):
        return row.reason, _offer_value(path, row.write) if row.write in choices else f"write {row.write}"
    return "there are no other choices", did_you_mean(value, choices)


def _bound_in_words(kind: str, limits: Mapping[str, Any]) -> str:
    """Return words for the bound that a value must keep, such as `be at least 1`."""
    thing = "character" if kind.startswith("string") else "item"
    match limits:
        case {"word": word, "bound": bound}:
            return f"be at {word} {bound}"
        case {"ge": bound}:
            return f"be at least {bound}"
        case {"le": bound}:
            return f"be at most {bound}"
        case {"min_length": bound}:
            return f"have at least {counted(bound, thing)}"
    return f"have at most {counted(limits['max_length'], thing)}"


def _out_of_bounds(path: str, value: Any, limits: Mapping[str, Any]) -> tuple[str, str]:
    """Return (reason, the nearest bound in words) for a value out of bounds.

    The bound is offered in words only, never as a change that a program applies: the user may have meant another unit.
    """
    if isinstance(value, str | list) and "bound" not in limits:
        return f"it has {len(value):,}", "shorten it" if "max_length" in limits else example_at(path)
    return sentence_of(field_at(path)), f"nearest: {limits.get('bound', limits.get('ge', limits.get('le')))}"


def _convert_value(kind: str, value: Any) -> Any:
    """Return `value` in the form that the field takes, such as text for a number, a number for text, or a list.

    Return None if it is unclear how to convert the value.
    """
    if kind == "list_type":
        return [value] if isinstance(value, str | int | float) else None
    if kind == "string_type":
        return str(value) if type(value) is int else None
    read = read_plain(value.strip().replace("_", "")) if isinstance(value, str) else value
    if kind == "int_type" and isinstance(read, float) and read.is_integer():
        return int(read)
    return read if type(read) in READ_AS.get(kind, ()) else None


def example_at(path: str) -> str:
    """Return the declared example of the field at `path`, as a fix for values that give no hint."""
    field, name = field_at(path), path.rpartition(".")[2]
    example = _first_example(field)
    if not name.isdecimal():
        return f"for example {name}: {as_yaml(example)}"
    return f"for example {as_yaml(example[0] if isinstance(example, list) else _required(section_of(field)))}"


def as_yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {as_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_yaml, value))}]"
    return value if isinstance(value, str) and read_plain(value) == value else json.dumps(value)


def _first_example(field: FieldInfo) -> Any:
    """Return the field's first declared example. Without any, return a mapping of its section's required keys."""
    return field.examples[0] if field.examples else _required(section_of(field))


def _required(section: type[Section] | None) -> dict[str, Any]:
    assert section
    return {name: _first_example(section.model_fields[name]) for name in required_in(section)}


def _noun(value: Any) -> str:
    if isinstance(value, str) and len(value) > MAX_DIGITS and value.lstrip("+-").isdecimal():
        return f"a number of more than {MAX_DIGITS} digits"
    return "null" if value is None else NOUNS[type(value)]

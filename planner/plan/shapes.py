"""Read a plan's files strictly: JSON that has each key once, in the shapes that this version writes.

An error names the path of the first wrong part and says what it should be.
"""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from planner.facts.files import read_file
from planner.facts.part import Part
from planner.facts.strict_json import NotStrict, parse_json
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.spec.schema import Spec

NO_PLAN = "S906 must be a plan that tidemill wrote"
PLAN_AGAIN = "plan its spec again: tidemill plan SPEC -o PLAN.json"
WRITE_ONE = "write one with tidemill plan -o"
EXPECTED_SHAPES = {
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "text",
    "string_pattern_mismatch": "a digest, a time, a name, or a rule with its id",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "literal_error": "a word that belongs there",
    "union_tag_invalid": "of a kind that is known",
    "greater_than_equal": "that large",
    "less_than_equal": "that small",
    "too_short": "that long",
    "too_long": "that short",
}

P = TypeVar("P", bound=Part)


def read_content(path: Path) -> bytes:
    """Return the bytes of the file at `path`. Raises CallError if it cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        raise plan_error(path, "S905 must be a readable plan", error.strerror or str(error)) from None


def parse_object(content: bytes, path: Path, version: int | None = None) -> dict[str, Any]:
    """Return the JSON object in `content`. Raises CallError if it is not one, or not of `version`, if given."""
    try:
        data = parse_json(content)
    except NotStrict as error:
        raise plan_error(path, NO_PLAN, str(error)) from None
    if not isinstance(data, dict):
        raise plan_error(path, NO_PLAN, "it is not a JSON object")
    if version is not None:
        _require_version(data, version, path)
    return data


def _require_version(data: dict[str, Any], version: int, path: Path) -> None:
    if "version" not in data:
        raise plan_error(path, NO_PLAN, "it has no version")
    if type(data["version"]) is not int or data["version"] != version:
        written = data["version"] if type(data["version"]) is int else "no whole number"
        reason = f"its version is {written}"
        raise plan_error(path, f"S907 must be a plan of version {version}", reason, PLAN_AGAIN)


def validate_part(part: type[P], content: bytes, path: Path) -> P:
    """Return the JSON `content` as a `part` of a plan. Raises CallError for the first value of a wrong shape."""
    try:
        return part.model_validate_json(content, context={"file": str(path)})
    except ValidationError as error:
        raise plan_error(path, NO_PLAN, _describe(error)) from None


def validate_spec(written: dict[str, Any], path: Path) -> Spec:
    """Return the spec in `written`, a plan's `spec` section. Raises CallError for the first value of a wrong shape."""
    try:
        return Spec.model_validate(written)
    except ValidationError as error:
        raise plan_error(path, NO_PLAN, f"spec.{_describe(error)}") from None


def plan_error(path: Path, rule: str, reason: str, fix: str = WRITE_ONE) -> CallError:
    """Return the error for a plan's file that breaks `rule`."""
    return CallError([Finding("", None, rule, reason, fix).at(str(path))])


def _describe(error: ValidationError) -> str:
    return _describe_shape_error(error.errors(include_url=False)[0])


def _describe_shape_error(detail: ErrorDetails) -> str:
    """Say which value of the plan has a wrong shape, and what it should be."""
    *parents, last = map(str, detail["loc"])
    if detail["type"] in ("missing", "union_tag_not_found"):
        missing = last if detail["type"] == "missing" else "kind"
        inside = parents if detail["type"] == "missing" else [*parents, last]
        return f"{'.'.join(inside) or 'it'} has no {missing}"
    if detail["type"] == "extra_forbidden":
        return f"{'.'.join([*parents, last])} is a key that this version of tidemill does not have"
    return f"{'.'.join([*parents, last])} is not {EXPECTED_SHAPES.get(detail['type'], 'an object')}"

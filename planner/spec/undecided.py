"""The types of fields that a spec may leave to the planner by the word `auto`.

`search/auto.py` replaces the word with a value, so nothing after it sees the word.
"""

from typing import Any

from pydantic import (
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

AUTO = "auto"


def is_undecided(value: object) -> bool:
    """Return whether a field's value is `auto`. The fields' static types do not mention this value."""
    return value == AUTO


def _read(written: Any, other: ValidatorFunctionWrapHandler) -> Any:
    return AUTO if written == AUTO else other(written)


def _write(value: Any, other: SerializerFunctionWrapHandler) -> Any:
    return AUTO if is_undecided(value) else other(value)


class _InJsonSchema:
    """Adds the word `auto` to a field's JSON Schema."""

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler(schema)
        return {"anyOf": [*inner.get("anyOf", [inner]), {"const": AUTO}]}


SAYS_AUTO = _InJsonSchema()  # metadata of a section whose own validator reads the word
OR_AUTO = (WrapValidator(_read), WrapSerializer(_write), SAYS_AUTO)  # metadata of a field that takes the word too

"""The base class for parts of a JSON document, such as PLAN.json, that programs write and read back.

Figures are rounded on writing, because estimates are no more exact. Rounding twice changes nothing.
"""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema


def _is_none(value: object) -> bool:
    return value is None


def _rounded(digits: int) -> AfterValidator:
    return AfterValidator(lambda value: float(f"{value:.{digits}g}"))


T = TypeVar("T")
Maybe = Annotated[T | None, Field(exclude_if=_is_none)]  # None leaves the key out
ClockTime = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Rounded = Annotated[float, _rounded(5)]
Rounded6 = Annotated[float, _rounded(6)]


class Part(BaseModel):
    """A part of a document, made from JSON or from the attributes of a pass's result.

    If an attribute's name differs from its key, it is the key's alias. A list is rejected at its first wrong entry,
    because a hostile file may have millions.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        from_attributes=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema, in which validation of a list stops at its first wrong entry."""
        schema = handler(source)
        _end_lists_early(schema)
        return schema


def _end_lists_early(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple"):
            schema["fail_fast"] = True
        for each in schema.values():
            _end_lists_early(each)
    elif isinstance(schema, list):
        for each in schema:
            _end_lists_early(each)

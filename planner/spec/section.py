"""The base class of the spec's sections, and types of fields that several sections share."""

import os
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

UNION_TAGS = (
    "<name>",
    "<own>",
    "<number>",
    "<list>",
)  # Pydantic adds these to the path of an error; a user's key of the same name can only be its last part


# Invisible characters: controls, which a terminal obeys, line ends, spaces of width zero and marks of direction.
_UNSEEN = r"\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
ONE_LINE = rf"^[^{_UNSEEN}]+$"  # text on one line, without control characters
ARGUMENT = rf"^[^-${_UNSEEN}][^${_UNSEEN}]*$"  # of a pod's command: no leading `-`; no `$`, as in $(NAME)

_WORD = {"anyOf": [{"const": True}, {"type": "number"}, {"type": "string"}]}
_VALUE = {"anyOf": [*_WORD["anyOf"], {"type": "array", "items": _WORD}, {"type": "object"}]}
Options = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": _VALUE})
]  # options of an engine's command: name -> value

# Otherwise Pydantic looks for plugins in every installed package before it builds its first model: 20 ms for nothing.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


class Section(BaseModel):
    """A part of the spec: immutable, without unknown keys, without conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


def find_tag(value: Any) -> str:
    """Return a value's tag for Pydantic's unions: `<own>` for a section that the user wrote, `<name>` for a name."""
    return "<own>" if isinstance(value, dict | Section) else "<name>"


def one_of(names: Iterable[str], *, or_text: bool = False) -> WithJsonSchema:
    """Return a JSON schema from which editors complete `names`.

    Other names are refused later, when they are looked up.
    """
    listed = {"enum": list(names), "type": "string"}
    return WithJsonSchema({"anyOf": [listed, {"type": "string", "minLength": 1}]} if or_text else listed)


def quantity_field(default: str, description: str, example: str | None = None) -> Any:
    """Return a field for a number with a unit. Its `default` is text, such as `10min`.

    The example is the default unless given.
    """
    return Field(default=default, validate_default=True, description=description, examples=[example or default])

"""Look up how the schema declares the field at a dotted path."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, WrapValidator
from pydantic.fields import FieldInfo

from planner.facts.terms import PHASES
from planner.spec.schema import Spec
from planner.spec.section import UNION_TAGS, Section
from planner.spec.undecided import is_undecided


def field_at(path: str) -> FieldInfo:
    """Return the schema's declaration of the field at the dotted `path`."""
    section: type[BaseModel] | None = Spec
    for name in path.split("."):
        if not name.isdecimal():  # an element of a list is declared with the list
            assert section
            field = section.model_fields[name]
            section = section_of(field)
    return field


@cache
def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section class that `field` holds or may hold, perhaps in a list; None if it holds no section."""
    return next((c for c in types_in(field.annotation) if isinstance(c, type) and issubclass(c, Section)), None)


def section_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the class of the section that contains the field at `location`, as Pydantic's errors give it."""
    parent = path_of(location[:-1])
    section = section_of(field_at(parent)) if parent else Spec
    assert section
    return section


def required_in(section: type[BaseModel]) -> list[str]:
    """Return the names of the required fields of `section`."""
    return [name for name, field in section.model_fields.items() if field.is_required()]


def holds_list(field: FieldInfo) -> bool:
    """Return whether `field` is declared as a list, or may be one."""
    return any(get_origin(each) is list for each in types_in(field.annotation))


def types_in(annotation: Any) -> Iterator[Any]:
    """Yield the type `annotation` and all types inside it."""
    yield annotation
    for argument in get_args(annotation):
        yield from types_in(argument)


def choices_at(path: str) -> list[Any]:
    """Return the literal values that the field at `path` may have."""
    literals = (each for each in types_in(field_at(path).annotation) if get_origin(each) is Literal)
    return list(chain.from_iterable(map(get_args, literals)))


@cache
def may_be_auto(field: FieldInfo) -> bool:
    """Return whether `field` may be `auto`."""
    return any(isinstance(each, WrapValidator) for each in field.metadata)


def undecided_in(section: BaseModel, above: str = "") -> Iterator[str]:
    """Yield the dotted path of each field below `section` whose value is still `auto`.

    `above` is the section's own path with a dot at its end; empty for the whole spec.
    """
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from undecided_in(value, f"{above}{name}.")
        elif may_be_auto(field) and is_undecided(value):
            yield f"{above}{name}"


def is_quantity(field: FieldInfo) -> bool:
    """Return whether `field` takes a number with a unit, such as `80GB`."""
    return any(isinstance(each, BeforeValidator) for each in field.metadata)


def sentence_of(field: FieldInfo) -> str:
    """Return the field's description as a clause, without capital and full stop, for the reason in a message."""
    assert field.description
    text = field.description.removesuffix(".")
    return text if text[1:2].isupper() else f"{text[0].lower()}{text[1:]}"


def path_of(location: Sequence[int | str]) -> str:
    """Return `location`, as Pydantic's errors give it, as a dotted path."""
    return ".".join(str(part) for part in location if part not in UNION_TAGS)


def table_key(path: str) -> str:
    """Return the key of the field `path` in tables of fields. It has PHASE for a phase, and no indices of lists."""
    section, *parts = path.split(".")
    named = [part for part in parts if not part.isdecimal()]
    return ".".join(["PHASE" if section in PHASES else section, *named])

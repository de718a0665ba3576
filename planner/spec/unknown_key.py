"""A key that the spec does not have, and an answer to it. `key_answers.py` has the answers.

prefill:            location ("prefill", "tp"), value 16, phase "prefill"
  tp: 16            beside {"tp": 16, "units": 2}, fields those of a phase
  units: 2          ours "attention_tp", which is what tidemill calls it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from planner.facts.terms import PHASES, Phase
from planner.problems.fix import HERE, Fix, removal
from planner.spec.declared import path_of, place_of, section_at
from planner.spec.instead import as_yaml
from planner.spec.misplaced import entered
from planner.spec.other_names import as_we_say
from planner.spec.section import UNION_TAGS
from planner.spec.why_not import what_instead_of, why_we_have_no

__all__ = ["Answer", "UnknownKey", "none_such", "put_instead", "renamed", "to_write"]


@dataclass(frozen=True)
class UnknownKey:
    """A key that its section does not have, as it is written."""

    location: tuple[int | str, ...]  # as Pydantic has it, from the top of the spec
    value: Any
    beside: Mapping[str, Any]  # the section in which it stands, itself included
    spec: Mapping[str, Any]  # the whole spec
    fields: Mapping[str, FieldInfo]  # that its section has

    @classmethod
    def of(cls, detail: ErrorDetails, spec: Mapping[str, Any]) -> "UnknownKey":
        """Return the key that Pydantic complains of in `spec`."""
        beside: Any = spec
        for part in detail["loc"][:-1]:
            beside = beside if part in UNION_TAGS else beside[part]
        assert isinstance(beside, dict)
        return cls(detail["loc"], detail["input"], beside, spec, section_at(detail["loc"]).model_fields)

    @property
    def name(self) -> str:
        """Return the key itself."""
        return str(self.location[-1])

    @cached_property
    def path(self) -> str:
        """Return where it stands, dotted: a key may look like the tags that Pydantic puts into a location."""
        return f"{self.parent}.{self.name}" if self.parent else self.name

    @cached_property
    def parent(self) -> str:
        """Return where its section stands, dotted; empty at the top."""
        return path_of(self.location[:-1])

    @property
    def section(self) -> str:
        """Return its section as tables call it: `PHASE` for a phase, without indexes of lists."""
        return place_of(self.parent)

    @property
    def is_at_the_top(self) -> bool:
        """Return whether it stands in no section."""
        return len(self.location) == 1

    @property
    def phase(self) -> Phase | None:
        """Return the phase that has it among its own keys; None where it stands elsewhere or deeper."""
        return next((each for each in PHASES if self.parent == each), None)

    @cached_property
    def ours(self) -> str:
        """Return what tidemill calls it; empty where it is no other name of a field."""
        return as_we_say(self.name, self.section) or ""

    @property
    def free(self) -> Sequence[str]:
        """Return the fields of its section that are not given."""
        return [each for each in self.fields if each not in self.beside]

    @property
    def why_not(self) -> str | None:
        """Return why tidemill has no such field, where that takes more than a list of fields."""
        return why_we_have_no(self.path)

    def sibling(self, name: str) -> str:
        """Return where the field `name` of the same section stands, dotted."""
        return path_of((*self.location[:-1], name))

    def as_seen_there(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return `fields` (dotted path -> value) by their names, where they are of the same section."""
        short = {path: path.removeprefix(f"{self.parent}.") for path in fields}
        return {path if "." in short[path] else short[path]: value for path, value in fields.items()}


@dataclass(frozen=True)
class Answer:
    """Why there is no such key, and what to do about it."""

    reason: str
    fix: Fix | str
    meant: Mapping[str, Any] = field(default_factory=dict)  # path -> value, of the fields that are there under this key


def none_such(key: UnknownKey) -> Answer:
    """Return the answer that no field was meant: the key goes, unless something else is to be done."""
    known = f"known keys: {', '.join(key.fields)}"
    return Answer(key.why_not or known, what_instead_of(key.path) or removal())


def renamed(key: UnknownKey, meant: Mapping[str, Any], reason: str | None = None, gone: Sequence[str] = ()) -> Answer:
    """Return the answer that `meant` stands there instead, by the names that its fields have in their section.

    What is `gone` of the section goes as well. Without a `reason` it is the one for another section or name.
    """
    written = entered(meant, key.spec)
    short = key.as_seen_there(written)
    is_same = all(value == key.value for value in written.values())
    words = f"did you mean {' and '.join(short)}?" if is_same else to_write(short)
    changes = {HERE: None, **{key.sibling(each): None for each in gone}, **written}
    return Answer(reason or _why_renamed(key, meant), Fix(words, (changes,)), meant)


def put_instead(reason: str, words: str, meant: Mapping[str, Any]) -> Answer:
    """Return the answer that `meant` stands there instead, in words of its own."""
    return Answer(reason, Fix(words, ({HERE: None, **meant},)), meant)


def to_write(values: Mapping[str, Any]) -> str:
    """Say what to write, as YAML; empty where it is nothing."""
    words = " and ".join(f"{path}: {as_yaml(value)}" for path, value in values.items())
    return words and f"write {words}"


def _why_renamed(key: UnknownKey, meant: Mapping[str, Any]) -> str:
    if any(path.rpartition(".")[0] != key.parent for path in meant):
        return "it belongs in another section"
    return "tidemill calls it by another name" if key.ours in key.fields else none_such(key).reason

"""YAML text to plain data, with the line and column of every value.

Why it exists: a message without a line is half a message, and YAML's surprises (`yes` is true, `12:30` is 750, a key
given twice silently wins, ten aliases make a gigabyte) must not reach a plan that moves hundreds of nodes.

What is read is YAML with the scalars of its 1.2 core schema: `true`/`false`, `null`/`~`, decimal integers, decimal
fractions; every other plain word is text. Refused: keys given twice, aliases (one value has one place), tags, more than
one document, nesting deeper than `MAX_DEPTH`.

It does not know the spec: `fields.py` does. Built on PyYAML's event stream (libyaml), which, unlike its `compose`, does
not recurse and so cannot be made to overflow the stack.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from planner.facts.files import read_file
from planner.problems.errors import Problem, SpecError, Violation
from planner.spec.undecided import AUTO
from planner.spec.yaml_mistakes import HOLE_REASON, Mistake, explain, holes, indent_by, look_alikes

__all__ = ["Document", "decode_document", "parse_document", "read_content", "read_document"]

NO_MAPPING = "S105 must be a mapping of keys to values"
MAX_DEPTH = 32  # the spec itself nests four deep
MAX_SPEC_BYTES = 2**23  # an inventory of 20,000 nodes has a fifth of it
MAX_VALUES = 2**19  # keys and values: 20,000 nodes that say all they can have fewer
MAX_PATH_CHARACTERS = 2**26  # of all paths together: those of such an inventory have a fifth of it

LITERALS = {"": None, "~": None, "null": None, "true": True, "false": False}
INTEGER = re.compile(r"[-+]?[0-9]{1,18}")  # longer ones stay text, and fail as text: no field wants them
FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?")

DECIMALS = re.compile(r"[0-9]{1,2}")  # behind a comma; three digits may be thousands

Place = tuple[int, int]  # line, column; both from 1


@dataclass(frozen=True)
class Document:
    """A spec file's data and where each part of it stands."""

    file: str
    data: dict[str, Any]
    keys: dict[str, Place]  # dotted path -> where its key stands
    values: dict[str, Place]  # dotted path -> where its value starts
    autos: frozenset[str] = frozenset()  # paths at which the file says `auto`, whatever `data` has by now

    def problem(self, violation: Violation) -> Problem:
        """`violation` at its value, at its key if that is a section or nothing, else at its nearest parent's.

        Items of lists have no keys: theirs is where they start. The value is the one in the file: a number that was
        decided in place of `auto` moves to the reason.
        """
        path = violation.path
        if path in self.autos and violation.value not in (None, AUTO):
            reason = f"{violation.reason} (auto became {violation.value})"
            violation = replace(violation, value=AUTO, reason=reason)
        while path and path not in self.values:
            path = path.rpartition(".")[0]
        is_plain = path == violation.path and not isinstance(violation.value, dict | None)
        is_item = path != "" and path not in self.keys
        places = self.values if is_plain or is_item else self.keys
        return violation.at(self.file, *places.get(path, (1, 1)))


def read_document(path: Path) -> Document:
    """The document in the file at `path`. Raises SpecError when there is none."""
    return decode_document(read_content(path), path)


def read_content(path: Path) -> bytes:
    """The bytes of the file at `path`. Raises SpecError when it cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        is_stdin = str(path) == "-"
        reason = "a spec names files beside it, so it is not read from stdin" if is_stdin else error.strerror
        fix = "save it to a file, and give its path" if is_stdin else "check the path"
        raise _refused(path, "S101 must be a readable file", reason or str(error), fix) from None


def decode_document(content: bytes, path: Path) -> Document:
    """The document in `content`, which was read from `path`. Raises SpecError when there is none."""
    if len(content) > MAX_SPEC_BYTES:
        reason = f"it has more than {MAX_SPEC_BYTES // 2**20} MiB"
        raise _refused(path, "S101 must be a readable file", reason, "check the path")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()
        reason = f"byte {error.start} ({error.object[error.start]:#04x}) is not UTF-8"
        place = _place_in(before, len(before))
        raise _refused(path, "S102 must be UTF-8 text", reason, "save the file as UTF-8", place) from None
    return parse_document(text, str(path))


def parse_document(text: str, file: str) -> Document:
    """The document in `text`; `file` names it in messages. Raises SpecError."""
    reader = _Reader(file, text)
    try:
        events = yaml.parse(text, Loader=yaml.CSafeLoader)
        data = reader.document(iter(events))
    except yaml.MarkedYAMLError as error:
        mistakes = explain(text, error)
        rule = NO_MAPPING if mistakes[0].reason == HOLE_REASON else "S103 must be YAML"
        raise reader.refused_all(rule, mistakes) from None
    except yaml.reader.ReaderError as error:
        place = _place_in(text, error.position)
        raise reader.refused(place, "S103 must be YAML", error.reason, "remove the character") from None
    return Document(file, data, reader.keys, reader.values, frozenset(reader.autos))


class _Reader:
    """Builds data from events and notes places on the way."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.keys: dict[str, Place] = {}
        self.values: dict[str, Place] = {}
        self.autos: set[str] = set()
        self.num_values = 0
        self.num_path_characters = 0

    def document(self, events: Iterator[yaml.Event]) -> dict[str, Any]:
        """The one mapping that the stream must hold."""
        data: Any = None
        num_documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    fix = "put each spec into its own file"
                    raise self.refused(
                        _start(event), "S104 must contain a single document", "a second one starts here", fix
                    )
                data = self.value(next(events), events, path="", depth=0)
        if not isinstance(data, dict):
            found = "it is empty" if data is None else "it is " + ("a list" if isinstance(data, list) else "one value")
            raise self.refused((1, 1), NO_MAPPING, found, "start with `version: 1`")
        return data

    def value(self, event: yaml.Event, events: Iterator[yaml.Event], path: str, depth: int) -> Any:
        """The value that starts with `event`, taking from `events` what belongs to it."""
        self.count(event, path)
        self.refuse_what_hides_values(event)
        if depth > MAX_DEPTH:
            fix = "use fewer levels"
            raise self.refused(
                _start(event), f"S108 must nest at most {MAX_DEPTH} deep", "no spec needs deeper nesting", fix
            )
        self.values[path] = _start(event)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(event, events, path, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(events, path, depth)
        assert isinstance(event, yaml.ScalarEvent)
        if event.value == AUTO:
            self.autos.add(path)
        return _scalar(event)

    def mapping(
        self, start: yaml.MappingStartEvent, events: Iterator[yaml.Event], path: str, depth: int
    ) -> dict[str, Any]:
        """The rest of a mapping whose `start` has been taken."""
        result: dict[str, Any] = {}
        before: tuple[str, str] | None = None  # the last key and its text
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            self.count(event, path)
            self.refuse_what_hides_values(event)
            key = self.key(event)
            key_path = f"{path}.{key}".lstrip(".")
            if key in result:
                raise self.given_twice(key, _start(event), path, result)
            self.keys[key_path] = _start(event)
            value = next(events)
            if start.flow_style and self.has_no_colon(event, value):
                raise self.cut_off(event, events, before)
            before = (key, value.value) if isinstance(value, yaml.ScalarEvent) else None
            result[key] = self.value(value, events, key_path, depth + 1)
        return result

    def has_no_colon(self, key: yaml.Event, value: yaml.Event) -> bool:
        """Whether a key in braces has neither a value nor a colon: it is a part of what stands before it."""
        assert key.end_mark
        assert value.start_mark
        between = self.text[key.end_mark.index : value.start_mark.index]
        return isinstance(value, yaml.ScalarEvent) and not value.value and value.implicit[0] and ":" not in between

    def cut_off(self, key: yaml.Event, events: Iterator[yaml.Event], before: tuple[str, str] | None) -> SpecError:
        """Say that a comma in braces has ended the value `before` it, which goes on in `key` and those like it."""
        assert isinstance(key, yaml.ScalarEvent)
        place, parts = _start(key), [key.value]
        for event in events:
            if not isinstance(event, yaml.ScalarEvent) or not self.has_no_colon(event, next(events)):
                break
            parts.append(event.value)
        rule = "S110 must give each key in braces a value"
        if before is None:
            return self.refused(place, rule, f"`{parts[0]}` has none", f"write `{parts[0]}: null`, or what it is")
        name, value = before
        whole = [value, *parts]
        reason = f"inside braces a comma ends the value, so `{name}` is `{value}` alone"
        if INTEGER.fullmatch(value) and len(parts) == 1 and DECIMALS.fullmatch(parts[0]):
            fix = f"write `{name}: {value}.{parts[0]}`, or a list in brackets, `{name}: [{value}, {parts[0]}]`"
            return self.refused(place, rule, reason, fix)
        fix = f'put it in quotes, `{name}: "{",".join(whole)}"`, or a list in brackets, `{name}: [{", ".join(whole)}]`'
        return self.refused(place, rule, reason, fix)

    def key(self, event: yaml.Event) -> str:
        """The text that a key must be, in characters that are YAML's where they look like it."""
        if isinstance(event, yaml.ScalarEvent):
            alike = look_alikes(self.text) if event.implicit[0] and look_alikes(event.value) else []
            if alike:
                raise self.refused_all("S103 must be YAML", alike)
            return str(event.value)
        if isinstance(event, yaml.MappingStartEvent) and (mistakes := holes(self.text)):
            raise self.refused_all(NO_MAPPING, mistakes)
        raise self.refused(_start(event), NO_MAPPING, *_no_key(event))

    def given_twice(self, key: str, here: Place, path: str, before: dict[str, Any]) -> SpecError:
        """A key that stands twice, or the key between the two with nothing below it, whose line is indented too far."""
        rule, key_path = "S106 must give each key once", f"{path}.{key}".lstrip(".")
        first = self.keys[key_path][0]
        empty = [self.keys[f"{path}.{each}"] for each in before if before[each] is None and path in self.keys]
        headless = [place for place in empty if first < place[0] < here[0]]
        if not headless:
            return self.refused(here, rule, f"`{key_path}` stands in line {first} too", "remove one of the two")
        reason = f"`{key_path}` stands in lines {first} and {here[0]}, and this key between them has nothing below it"
        return self.refused(headless[-1], rule, reason, indent_by(self.keys[path][1] - 1))

    def sequence(self, events: Iterator[yaml.Event], path: str, depth: int) -> list[Any]:
        """The rest of a list whose start has been taken."""
        result: list[Any] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            result.append(self.value(event, events, f"{path}.{len(result)}", depth + 1))
        return result

    def count(self, event: yaml.Event, path: str) -> None:
        """Refuse the key or value at which the file takes far more memory than its bytes: `1,` and long keys do."""
        self.num_values += 1
        self.num_path_characters += len(path)
        if self.num_values > MAX_VALUES:
            reason = f"it has more than {MAX_VALUES:,} keys and values"
        elif self.num_path_characters > MAX_PATH_CHARACTERS:
            reason = f"the paths of its values have more than {MAX_PATH_CHARACTERS:,} characters"
        else:
            return
        raise self.refused(_start(event), "S101 must be a readable file", reason, "check the path")

    def refuse_what_hides_values(self, event: yaml.Event) -> None:
        """Aliases, anchors and tags make a value something else than what stands there."""
        hidden = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None)
        if hidden:
            reason = "a message must be able to name the one line where a value is written"
            raise self.refused(
                _start(event),
                "S107 must not use anchors (&), aliases (*) or tags (!)",
                reason,
                "write the value itself",
            )

    def refused(self, place: Place, rule: str, reason: str, fix: str) -> SpecError:
        return self.refused_all(rule, [Mistake(place, reason, fix)])

    def refused_all(self, rule: str, mistakes: Sequence[Mistake]) -> SpecError:
        return SpecError(
            [Violation("", None, rule, each.reason, each.fix).at(self.file, *each.place) for each in mistakes]
        )


def _scalar(event: yaml.ScalarEvent) -> Any:
    """A plain word by the core schema; anything quoted is text."""
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in LITERALS:
        return LITERALS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    if FRACTION.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _no_key(event: yaml.Event) -> tuple[str, str]:
    """Why it is none, and what would do."""
    if isinstance(event, yaml.MappingStartEvent):
        return HOLE_REASON, "write the value"
    return "a key is not text", "write a plain key"


def _start(event: yaml.Event) -> Place:
    assert event.start_mark
    return event.start_mark.line + 1, event.start_mark.column + 1


def _place_in(text: str, position: int) -> Place:
    before = text[:position]
    return before.count("\n") + 1, position - before.rfind("\n")


def _refused(path: Path, rule: str, reason: str, fix: str, place: Place = (1, 1)) -> SpecError:
    return SpecError([Violation("", None, rule, reason, fix).at(str(path), *place)])

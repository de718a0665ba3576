"""Read YAML as plain data, with the line and column of every value.

Messages need lines, and YAML's surprises (`yes` is true, `12:30` is 750, the second of two equal keys silently wins,
ten aliases make a gigabyte) must not reach a plan that moves hundreds of nodes.

It reads YAML with the scalars of the 1.2 core schema: `true`/`false`, `null`/`~`, decimal integers and fractions; every
other plain word is text. It rejects repeated keys, aliases (one value has one place), tags, more than one document, and
nesting deeper than `MAX_DEPTH`.

This file knows nothing of the spec's fields. It uses PyYAML's event stream (libyaml), which unlike `compose` does not
recurse, so no input can overflow the stack.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from planner.facts.files import read_file
from planner.problems.errors import SpecError
from planner.problems.finding import Finding
from planner.problems.fix import Change
from planner.spec.undecided import AUTO
from planner.spec.yaml_errors import explain

NO_MAPPING = "S105 must be a mapping of keys to values"
MAX_DEPTH = 32  # the spec itself nests four deep
MAX_SPEC_BYTES = 2**23  # an inventory of 20,000 nodes has a fifth of it
MAX_VALUES = 2**19  # keys and values; 20,000 nodes with all fields have fewer
MAX_PATH_CHARACTERS = 2**26  # of all paths together: those of such an inventory have a fifth of it

LITERALS = {"": None, "~": None, "null": None, "true": True, "false": False}
MAX_DIGITS = 18  # of an integer; longer ones stay text, which no number field accepts
INTEGER = re.compile(rf"[-+]?[0-9]{{1,{MAX_DIGITS}}}")
FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?")

Position = tuple[int, int]  # line, column; both from 1
Place = tuple[str, int, int]  # file, line, column


@dataclass(frozen=True)
class Document:
    """A spec's data, and the file, line and column of each key and value."""

    file: str  # names of other files are relative to its folder
    data: dict[str, Any]
    keys: dict[str, Place]  # dotted path -> place of its key; for a section in several files, in the first
    values: dict[str, Place]  # dotted path -> start of its value; for a section in several files, in the last
    autos: frozenset[str] = frozenset()  # paths that are `auto` in the files, even if `data` has a decided value
    refused: tuple[tuple[str, Finding], ...] = ()  # path of a value that is hidden, as by an alias, and the finding
    is_overlaid: bool = False
    file_names: dict[str, str] = field(default_factory=dict)  # path -> the file's name in an overlay in another folder

    @property
    def unread(self) -> frozenset[str]:
        """The paths of values that the reader refused, such as aliases. No other finding is about these paths."""
        return frozenset(path for path, _ in self.refused)

    def locate(self, finding: Finding) -> Finding:
        """Return `finding` with the place of its value in a file, else of its section's key or the nearest parent.

        A list item's place is its start. The finding then shows the value in the file. If that value is `auto`, the
        decided number is said in the reason.
        """
        if finding.path in self.file_names and isinstance(finding.value, str):
            finding = replace(finding, value=self.file_names[finding.path])
        if finding.path in self.autos and finding.value not in (None, AUTO):
            reason = f"{finding.reason} (auto became {finding.value})"
            finding = replace(finding, value=AUTO, reason=reason)
        if self.is_overlaid:
            finding = replace(finding, change_files=self._files_to_change(finding.changes))
        path = self._nearest_written(finding.path)
        is_plain = path == finding.path and not isinstance(finding.value, dict | None)
        is_item = path != "" and path not in self.keys
        places = self.values if is_plain or is_item else self.keys
        return finding.at(*places.get(path, (self.file, 1, 1)))

    def _files_to_change(self, changes: Sequence[Change]) -> dict[str, str]:
        """Return changed path -> the file in which to write it, which is the last one that has a value there."""
        paths = dict.fromkeys(path for change in changes for path in change)
        return {path: self.values[self._nearest_written(path)][0] for path in paths}

    def _nearest_written(self, path: str) -> str:
        """Return `path`, or its nearest parent that a file has. The empty path is the whole spec."""
        while path and path not in self.values:
            path = path.rpartition(".")[0]
        return path


def read_document(path: Path) -> Document:
    """Return the document in the file at `path`. Its refused parts are in `Document.refused`.

    Raises SpecError if the file cannot be read or is no YAML mapping.
    """
    return decode_document(read_content(path), path)


def read_content(path: Path) -> bytes:
    """Return the bytes of the file at `path`. Raises SpecError if it cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        is_stdin = str(path) == "-"
        reason = "a spec names files beside it, so it is not read from stdin" if is_stdin else error.strerror
        fix = "save it to a file, and give its path" if is_stdin else "check the path"
        raise _refused(path, "S101 must be a readable file", reason or str(error), fix) from None


def decode_document(content: bytes, path: Path) -> Document:
    """Return the document in `content`, the bytes of the file at `path`.

    Raises SpecError if they are no YAML mapping.
    """
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
    return _read(text, str(path))


def parse_document(text: str, file: str) -> Document:
    """Return the document in `text`. Messages call it `file`. Raises SpecError if a part of it is refused."""
    document = _read(text, file)
    if document.refused:
        raise SpecError([finding for _, finding in document.refused])
    return document


def _read(text: str, file: str) -> Document:
    reader = _Reader(file)
    try:
        events = yaml.parse(text, Loader=yaml.CSafeLoader)
        data = reader.read_document(iter(events))
    except yaml.MarkedYAMLError as error:
        mistake = explain(text, error)
        raise reader.error(mistake.place, "S103 must be YAML", mistake.reason, mistake.fix) from None
    except yaml.reader.ReaderError as error:
        place = _place_in(text, error.position)
        raise reader.error(place, "S103 must be YAML", error.reason, "remove the character") from None
    return Document(file, data, reader.keys, reader.values, frozenset(reader.autos), tuple(reader.refused))


class _Reader:
    """Builds a spec's data from YAML events, and records the place of each key and value."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.keys: dict[str, Place] = {}
        self.values: dict[str, Place] = {}
        self.autos: set[str] = set()
        self.refused: list[tuple[str, Finding]] = []
        self.num_values = 0
        self.num_path_characters = 0

    def read_document(self, events: Iterator[yaml.Event]) -> dict[str, Any]:
        """Return the mapping that the events describe. Raises SpecError unless they are one document with a mapping."""
        data: Any = None
        num_documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    fix = "put each spec into its own file"
                    raise self.error(
                        _start(event), "S104 must contain a single document", "a second one starts here", fix
                    )
                data = self.read_value(next(events), events, path="", depth=0)
        if not isinstance(data, dict):
            found = "it is empty" if data is None else "it is " + ("a list" if isinstance(data, list) else "one value")
            raise self.error((1, 1), NO_MAPPING, found, "start with `version: 1`")
        return data

    def read_value(self, event: yaml.Event, events: Iterator[yaml.Event], path: str, depth: int) -> Any:
        """Consume and return the value at `path` that starts with `event`, and record where the file has it.

        An alias is refused and read as None. Raises SpecError for a value that is nested too deep.
        """
        self.count_value(event, path)
        self.refuse_what_hides_values(event, path)
        if depth > MAX_DEPTH:
            fix = "use fewer levels"
            raise self.error(
                _start(event), f"S108 must nest at most {MAX_DEPTH} deep", "no spec needs deeper nesting", fix
            )
        self.values[path] = (self.file, *_start(event))
        if isinstance(event, yaml.MappingStartEvent):
            return self.read_mapping(events, path, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.read_sequence(events, path, depth)
        if isinstance(event, yaml.AliasEvent):
            return None
        assert isinstance(event, yaml.ScalarEvent)
        if event.value == AUTO:
            self.autos.add(path)
        return _scalar(event)

    def read_mapping(self, events: Iterator[yaml.Event], path: str, depth: int) -> dict[str, Any]:
        """Consume and return the mapping at `path` after its start event, and record where the file has its keys."""
        result: dict[str, Any] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            self.count_value(event, path)
            key = self.read_key(event)
            key_path = f"{path}.{key}".lstrip(".")
            self.refuse_what_hides_values(event, key_path)
            if key in result:
                first = self.keys[key_path][1]
                rule, reason = "S106 must give each key once", f"`{key_path}` stands in line {first} too"
                self.refuse(_start(event), key_path, rule, reason, "remove one of the two")
            self.keys[key_path] = (self.file, *_start(event))
            result[key] = self.read_value(next(events), events, key_path, depth + 1)
        return result

    def read_key(self, event: yaml.Event) -> str:
        """Return the key that `event` is. Raises SpecError if it is not text."""
        if isinstance(event, yaml.ScalarEvent):
            return str(event.value)
        is_hole = isinstance(event, yaml.MappingStartEvent)
        fix = "write the value, if a template's {{ }} has not been filled in" if is_hole else "write a plain key"
        raise self.error(_start(event), NO_MAPPING, "a key is not text", fix)

    def read_sequence(self, events: Iterator[yaml.Event], path: str, depth: int) -> list[Any]:
        """Return the list at `path`, whose start event has been consumed."""
        result: list[Any] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            result.append(self.read_value(event, events, f"{path}.{len(result)}", depth + 1))
        return result

    def count_value(self, event: yaml.Event, path: str) -> None:
        """Count one key or value.

        Raises SpecError if there are so many that their paths would take far too much memory.
        """
        self.num_values += 1
        self.num_path_characters += len(path)
        if self.num_values > MAX_VALUES:
            reason = f"it has more than {MAX_VALUES:,} keys and values"
        elif self.num_path_characters > MAX_PATH_CHARACTERS:
            reason = f"the paths of its values have more than {MAX_PATH_CHARACTERS:,} characters"
        else:
            return
        raise self.error(_start(event), "S101 must be a readable file", reason, "check the path")

    def refuse_what_hides_values(self, event: yaml.Event, path: str) -> None:
        """Record a mistake for an alias, an anchor or a tag, which make a value differ from its text."""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            rule = "S107 must not use anchors (&), aliases (*) or tags (!)"
            reason = "a message must be able to name the one line where a value is written"
            self.refuse(_start(event), path, rule, reason, "write the value itself")

    def refuse(self, place: Position, path: str, rule: str, reason: str, fix: str) -> None:
        """Record the mistake at `path`. Reading goes on, to find others."""
        self.refused += [(path, each) for each in self.error(place, rule, reason, fix).findings]

    def error(self, place: Position, rule: str, reason: str, fix: str) -> SpecError:
        """Return a SpecError with one finding at `place` in the file. The caller raises it."""
        return SpecError([Finding("", None, rule, reason, fix).at(self.file, *place)])


def _scalar(event: yaml.ScalarEvent) -> Any:
    """Return a scalar's value. A plain word has its value in YAML's core schema; quoted text stays text."""
    return read_plain(event.value) if event.implicit[0] else event.value


def read_plain(text: str) -> Any:
    """Return the value of `text` as an unquoted word: a number, true, false, null, or the text itself."""
    if text in LITERALS:
        return LITERALS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    if FRACTION.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _start(event: yaml.Event) -> Position:
    assert event.start_mark
    return event.start_mark.line + 1, event.start_mark.column + 1


def _place_in(text: str, position: int) -> Position:
    before = text[:position]
    return before.count("\n") + 1, position - before.rfind("\n")


def _refused(path: Path, rule: str, reason: str, fix: str, place: Position = (1, 1)) -> SpecError:
    return SpecError([Finding("", None, rule, reason, fix).at(str(path), *place)])

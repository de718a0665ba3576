"""What is wrong where YAML cannot be parsed: what was probably meant, and where.

A parser says where it gave up and in its own words (`mapping values are not allowed in this context`), which is often a
line below the mistake: a colon forgotten, a quote left open, a tab, a line indented by a space too many. Here its
verdict and the lines around it become a place, a reason and a fix. What is not recognised stays in the parser's words.

It does not parse, and knows nothing of the spec.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import yaml

from planner.facts.counted import counted
from planner.problems.errors import MAX_TOLD

__all__ = ["HOLE_REASON", "Mistake", "explain", "holes", "indent_by", "look_alikes"]

HOLE = re.compile(r"\{\{[^{}]*\}\}")
HOLE_REASON = "a template's {{ }} has not been filled in"
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
SYNTAX = " :,[]{}\"'-"  # what YAML reads, and other characters look like
TYPOGRAPHY = {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2013": "-", "\u2014": "-", "\u2212": "-"}

WORDS = re.compile(r"(?P<key>[A-Za-z_][\w.-]*)(?P<colon>:?)(?P<space>\s*)(?P<value>.*)")
KEY_AND_VALUE = re.compile(r"[^\s#][^#]*?:(\s|$)")  # how a line begins that has a key
CLOSING = {"flow sequence": ("[", "]"), "flow mapping": ("{", "}")}

Place = tuple[int, int]  # line, column; both from 1


@dataclass(frozen=True)
class Mistake:
    """A mistake: its place, why the file cannot be read, and what would do."""

    place: Place
    reason: str
    fix: str


def explain(text: str, error: yaml.MarkedYAMLError) -> list[Mistake]:
    """The mistake in `text` that `error` is about, with all others of its kind that would come up one by one."""
    seen = _Seen(text.splitlines(), _place(error.problem_mark), _place(error.context_mark), error)
    lines = {seen.place[0], seen.began[0], seen.before(seen.place[0])}
    for find in (_holes, _look_alikes):
        if any(mistake for number in lines for mistake in find(number, seen.line(number))):
            return _all(find, text)
    for recognise in RECOGNISERS:
        mistake = recognise(seen)
        if mistake:
            return [mistake]
    return [Mistake(seen.place, f"the parser says: {error.problem or 'it cannot be parsed'}", "correct the line")]


def holes(text: str) -> list[Mistake]:
    """Every hole of a template that is not filled in, at the second of its braces."""
    return _all(_holes, text)


def look_alikes(text: str) -> list[Mistake]:
    """Every line in which a character stands that only looks like one of YAML's, outside of quotes."""
    return _all(_look_alikes, text)


def _all(find: Callable[[int, str], Iterator[Mistake]], text: str) -> list[Mistake]:
    """Return what `find` finds in the lines of `text`, and no more than it takes to say that not all is listed."""
    found = (mistake for number, line in enumerate(text.splitlines(), 1) for mistake in find(number, line))
    return list(islice(found, MAX_TOLD + 1))


def _holes(number: int, line: str) -> Iterator[Mistake]:
    for hole in HOLE.finditer(_words(line, keep_indentation=True)):
        yield Mistake((number, hole.start() + 2), HOLE_REASON, "write the value")


def _look_alikes(number: int, line: str) -> Iterator[Mistake]:
    """Yield the first of a line."""
    if line.isascii():
        return
    words = _words(line, keep_indentation=True)
    unquoted = QUOTED.sub(lambda quoted: "x" * len(quoted[0]), words)
    column = next((index for index, each in enumerate(unquoted) if _plain(each) != each), None)
    if column is None:
        return
    character = unquoted[column]
    called = f"U+{ord(character):04X} ({unicodedata.name(character, 'unnamed').lower()})"
    if not words[:column].strip():
        yield Mistake((number, 1), f"{called} stands where lines are indented", "indent with spaces")
        return
    meant = _meant(words).strip()
    plain = _plain(character).replace(" ", "a space")
    yield Mistake((number, _indentation(line) + 1), f"{called} only looks like {plain}", f"write `{meant}`")


def _meant(words: str) -> str:
    """`words` in YAML's own characters; the colon of a key has a space after it, that of `08:30` has none."""
    meant: list[str] = []
    has_colon = False  # since the last comma or bracket
    for index, each in enumerate(words):
        plain = _plain(each)
        is_of_key = plain == ":" != each and not has_colon
        meant.append(f"{plain} " if is_of_key and words[index + 1 : index + 2].strip() else plain)
        has_colon = plain not in ",[{" and (has_colon or plain == ":")
    return "".join(meant)


def _plain(character: str) -> str:
    """The character of YAML's that `character` looks like, else itself."""
    plain = TYPOGRAPHY.get(character) or unicodedata.normalize("NFKC", character)
    return plain if len(plain) == 1 and plain in SYNTAX else character


@dataclass(frozen=True)
class _Seen:
    """The text in lines, and what the parser says of it."""

    lines: Sequence[str]
    place: Place  # where it gave up
    began: Place  # where what it was reading began
    error: yaml.MarkedYAMLError

    @property
    def problem(self) -> str:
        return self.error.problem or ""

    @property
    def context(self) -> str:
        return self.error.context or ""

    @property
    def character(self) -> str:
        """Return the character at which the parser gave up."""
        line, column = self.place
        return self.line(line)[column - 1 : column]

    def line(self, number: int) -> str:
        """Return the line of this number, empty beyond the end."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def before(self, number: int) -> int:
        """The number of the last line with something in it before that one; 0 if there is none."""
        filled = (each for each in range(min(number - 1, len(self.lines)), 0, -1) if _words(self.line(each)))
        return next(filled, 0)

    def after(self, number: int) -> int:
        """The number of the next line with something in it; 0 if there is none."""
        filled = (each for each in range(number + 1, len(self.lines) + 1) if _words(self.line(each)))
        return next(filled, 0)


def _tab(seen: _Seen) -> Mistake | None:
    if seen.character != "\t":
        return None
    return Mistake(seen.place, "the line is indented with a tab, whose width is not defined", "indent with spaces")


def _odd_beginning(seen: _Seen) -> Mistake | None:
    if "cannot start any token" not in seen.problem:
        return None
    return Mistake(seen.place, f"a value that is not in quotes cannot begin with {seen.character}", "put it in quotes")


def _lone_sign(seen: _Seen) -> Mistake | None:
    """`glob: *` is meant as text; the parser reads the start of an alias or anchor whose name is missing."""
    if "alphabetic or numeric character" not in seen.problem:
        return None
    line, column = seen.began
    sign = seen.line(line)[column - 1 : column]
    return Mistake(seen.began, f"a value that is not in quotes cannot begin with {sign}", "put it in quotes")


def _open_quote(seen: _Seen) -> Mistake | None:
    if "quoted scalar" not in seen.context:
        return None
    return Mistake(seen.began, "the quotation mark is never closed", "close it")


def _open_bracket(seen: _Seen) -> Mistake | None:
    """A list or mapping in brackets goes on; what lacks is at the end of the line above, or here."""
    kind = seen.context.removeprefix("while parsing a ")
    if kind not in CLOSING:
        return None
    opening, closing = CLOSING[kind]
    line, column = seen.place
    if line > seen.began[0]:
        line = seen.before(line)
        column = len(_words(seen.line(line), keep_indentation=True)) + 1
    elif seen.character == ":":  # of the key that a comma should stand before
        column = seen.line(line).rfind(" ", 0, column) + 1
    return Mistake((line, column), f"{opening} of line {seen.began[0]} is open", f"write , or {closing}")


def _no_colon(seen: _Seen) -> Mistake | None:
    """`ep_size 32` and `ep_size:32` are single words; the parser notices at the next colon, or at the end."""
    if "could not find expected ':'" in seen.problem:
        number = seen.began[0]
    elif "mapping values are not allowed" in seen.problem:
        number = seen.before(seen.place[0])
    else:
        return None
    words = _words(seen.line(number))
    parts = WORDS.fullmatch(words)
    if parts is None or KEY_AND_VALUE.match(words):
        return None
    missing = "space after the colon" if parts["colon"] else "colon after the key"
    meant = f"{parts['key']}: {parts['value']}".rstrip()
    return Mistake((number, _indentation(seen.line(number)) + 1), f"the {missing} is missing", f"write `{meant}`")


def _second_colon(seen: _Seen) -> Mistake | None:
    line, column = seen.place
    before = seen.line(line)[: column - 1]
    key = re.match(r"\s*(?:- )*[^\s:][^:]*:\s+(?=\S)", before)
    if "mapping values are not allowed" not in seen.problem or key is None:
        return None
    return Mistake((line, key.end() + 1), "the value contains a colon followed by a space", "put it in quotes")


def _too_deep(seen: _Seen) -> Mistake | None:
    number, above = seen.place[0], seen.before(seen.place[0])
    here, there = _indentation(seen.line(number)), _indentation(seen.line(above))
    is_told = "mapping values are not allowed" in seen.problem or "did not find expected key" in seen.problem
    if not is_told or here <= there or above == 0:
        return None
    reason = f"it is indented deeper than line {above}, whose key already has a value"
    return Mistake((number, here + 1), reason, indent_by(there))


def _between(seen: _Seen) -> Mistake | None:
    """A line that is indented less than the one above, and like none.

    A key without a value is the key of what stands below it, so that it is indented less than that.
    """
    number, column = seen.place
    above = seen.before(number)
    is_first = _indentation(seen.line(number)) + 1 == column
    if "did not find expected" not in seen.problem or not is_first:
        return None
    there = _indentation(seen.line(above))
    if there < column:
        return None
    reason = f"it is indented less than line {above} and matches no key above it"
    below = seen.after(number)
    if _words(seen.line(number)).endswith(":") and below:
        inner = _indentation(seen.line(below))
        levels = (_indentation(seen.line(each)) for each in range(1, number) if _words(seen.line(each)))
        there = max((level for level in levels if level < inner), default=there)
    return Mistake(seen.place, reason, indent_by(there))


def _items_among_keys(seen: _Seen) -> Mistake | None:
    line, column = seen.place
    is_item = seen.line(line)[column - 1 :].startswith("- ")
    if not (is_item and "did not find expected key" in seen.problem) and "expected '-'" not in seen.problem:
        return None
    reason = "keys and list items (-) are mixed at the same level"
    return Mistake(seen.place, reason, "give the list a key of its own")


def _after_the_end(seen: _Seen) -> Mistake | None:
    line, column = seen.place
    if "did not find expected key" not in seen.problem or not seen.line(line)[: column - 1].strip():
        return None
    return Mistake(seen.place, "the value is already complete before this point", "remove the rest of the line")


RECOGNISERS: Sequence[Callable[[_Seen], Mistake | None]] = (
    _tab,
    _odd_beginning,
    _lone_sign,
    _open_quote,
    _open_bracket,
    _no_colon,
    _second_colon,
    _too_deep,
    _items_among_keys,
    _between,
    _after_the_end,
)


def _place(mark: yaml.Mark | None) -> Place:
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _words(line: str, *, keep_indentation: bool = False) -> str:
    """What stands in it, without its comment."""
    words = re.sub(r"(^|\s)#.*", "", line).rstrip()
    return words if keep_indentation else words.lstrip()


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def indent_by(number: int) -> str:
    """Say how far a line is to be indented."""
    spaces = counted(number, "space")
    return f"indent it by {spaces}" if number else "do not indent it"

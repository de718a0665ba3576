"""Explain YAML's parse errors in users' words.

A parser reports where it stopped and what it did not expect. The mistake is there, or at the start of the part that it
was reading. Errors that are not in the table keep the parser's words.
"""

import unicodedata
from dataclasses import dataclass

import yaml

Place = tuple[int, int]  # line, column; both from 1


@dataclass(frozen=True)
class Mistake:
    """A mistake in YAML: its place, the reason and the fix."""

    place: Place
    reason: str
    fix: str


# Words of the parser's message, or the character at which it stopped -> where the mistake is, the reason, what to do.
# The first row that applies counts.
HERE, BEFORE = "problem_mark", "context_mark"
VERDICTS = (
    ("at '\\t'", HERE, "a tab stands here, whose width is not defined", "indent with spaces"),
    ("cannot start any token", HERE, "a value that is not in quotes cannot begin with this", "put it in quotes"),
    ("alphabetic or numeric", BEFORE, "a value that is not in quotes cannot begin with * or &", "put it in quotes"),
    ("quoted scalar found unexpected", BEFORE, "the quotation mark is never closed", "close it"),
    ("parsing a flow", BEFORE, "after this bracket a comma, a colon or the closing bracket is missing", "write it"),
    ("expected ':'", BEFORE, "the line has no colon that is followed by a space", "write KEY: VALUE"),
    (
        "mapping values are not",
        HERE,
        "a value ends before this colon: it is indented deeper than its neighbours, the line above has no colon that is"
        " followed by a space, or the value has one itself",
        "correct this line or the one above, or put the value in quotes",
    ),
    (
        "did not find expected",
        HERE,
        "it continues neither the value before it nor a list or mapping",
        "correct its indentation, or remove it",
    ),
)


def explain(text: str, error: yaml.MarkedYAMLError) -> Mistake:
    """Return the mistake in `text` that made the parser raise `error`."""
    at = error.problem_mark
    character = text[at.index : at.index + 1] if at else ""
    said = f"{error.context} {error.problem} at {character!r}"
    for words, mark, reason, fix in VERDICTS:
        if words in said:
            place = getattr(error, mark) or at
            return Mistake(_place(place), f"{reason}{_odd_character(text, place)}", fix)
    return Mistake(_place(at), f"the parser says: {error.problem or 'it cannot be parsed'}", "correct the line")


def _odd_character(text: str, mark: yaml.Mark | None) -> str:
    """Return a hint about the first non-ASCII character of this line or the line above it; empty if there is none.

    Many such characters look like YAML's own.
    """
    lines = text.splitlines()[max(0, mark.line - 1) : mark.line + 1] if mark else []
    odd = next((each for each in "".join(lines) if not each.isascii()), None)
    return f" (there is U+{ord(odd):04X}, {unicodedata.name(odd, 'unnamed').lower()})" if odd else ""


def _place(mark: yaml.Mark | None) -> Place:
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)

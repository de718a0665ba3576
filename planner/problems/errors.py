"""The errors that a user can cause, and the exit status of each.

    TidemillError
    ├── SpecError         2   the spec is wrong: every mistake at once, each with its line
    ├── InfeasibleError   3   the spec is right, but what it asks for cannot be had
    ├── CallError         2   the command line is wrong
    └── OutputError       1   the answer could not be written

Each carries `Problem`s, which say the same thing to people (`message`, one line) and to programs (`as_json`). Our own
mistakes are not here: those are `assert`s.

A message has four parts, joined by `; `: field and value with the rule and its numbers, the reason, the nearest fix.
    decode.ep_size (100) must divide num_physical_experts (288 = 256 + 32 redundant); all GPUs ...; nearest: 96 or 144

All mistakes are listed at once, up to `MAX_TOLD` of a rule in a file. S109 stands for the rest of that rule's.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from planner.problems.fix import HERE, Change, Fix
from planner.problems.printable import printable, without_passwords

__all__ = [
    "MAX_TOLD",
    "CallError",
    "InfeasibleError",
    "OutputError",
    "Problem",
    "SpecError",
    "TidemillError",
    "Violation",
    "may_be_secret",
]


MAX_TOLD = 500  # assumed: nobody reads more of one kind
MAX_WORD = 200  # characters without a space; our own longest are paths of a patch's fields
MAX_PART = 2000  # assumed: more than any rule of ours with all that it lists
LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")


@dataclass(frozen=True)
class Violation:
    """A broken rule, before anyone has looked up where in the file it stands.

    `rule` starts with its id, which is never given to another rule: `S301 must divide ...`.
    """

    path: str  # dotted: `decode.ep_size`; empty for the file as a whole
    value: Any  # as written; None where nothing is, and where it may be a secret
    rule: str
    reason: str
    fix: Fix | str  # a sentence where it takes what only the user knows

    def __post_init__(self) -> None:
        if may_be_secret(self.path):
            object.__setattr__(self, "value", None)

    @property
    def message(self) -> str:
        """The four parts as one line. What the user wrote is cut wherever it is quoted; `changes` have all of it."""
        _, _, rule_text = self.rule.partition(" ")
        value = "" if self.value is None else f" ({_shown(self.value)})"
        path, rule, reason, fix = map(_cut, (self.path, rule_text, self.reason, str(self.fix)))
        return f"{path}{value} {rule}; {reason}; {fix}".lstrip()

    @property
    def changes(self) -> tuple[Change, ...]:
        """The fix as changes of the spec, or of the call's options. Each of them alone mends the mistake."""
        found = self.fix.changes if isinstance(self.fix, Fix) else ()
        return tuple({self.path if path == HERE else path: value for path, value in each.items()} for each in found)

    def at(self, file: str, line: int = 0, column: int = 0) -> "Problem":
        """Return the same with its place; without a line when it is about no line of any file."""
        return Problem(self.path, self.value, self.rule, self.reason, self.fix, file, line, column)


@dataclass(frozen=True)
class Problem(Violation):
    """A broken rule and where it stands. Lines and columns count from 1; 0 means a call, or a file that is no spec."""

    file: str
    line: int
    column: int

    def as_json(self) -> dict[str, Any]:
        """Return one entry of `errors`, as the contract has it."""
        entry = {
            "file": self.file,
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "value": self.value,
            "rule": self.rule,
            "reason": self.reason,
            "fix": str(self.fix),
            "message": self.message,
        }
        shown = {key: without_passwords(each) if isinstance(each, str) else each for key, each in entry.items()}
        return shown | ({"changes": [dict(change) for change in self.changes]} if self.changes else {})

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return printable(without_passwords(f"{place}: {self.message} [{self.rule.split()[0]}]"))


MAY_BE_SECRET = tuple(f"kubernetes.{field}." for field in ("env", "overlay", "patches"))


def may_be_secret(path: str) -> bool:
    """Return whether what stands at `path`, in a spec or in a plan's copy of it, may be a secret: never print it."""
    place = f"{path.removeprefix('spec.')}."
    return place.startswith(MAY_BE_SECRET) or place == "kubernetes."


class TidemillError(Exception):
    """Something a user can cause and repair."""

    exit_status: ClassVar[int]

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        in_order = sorted(problems, key=lambda problem: (problem.file, problem.line, problem.column))
        self.problems = tuple(_told(in_order))

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class SpecError(TidemillError):
    """The spec is wrong."""

    exit_status = 2


class InfeasibleError(TidemillError):
    """The spec is right, and cannot be met."""

    exit_status = 3


class CallError(TidemillError):
    """The command was called wrongly."""

    exit_status = 2


class OutputError(TidemillError):
    """The answer is there but could not be written."""

    exit_status = 1


def _told(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield `problems`, and at the first that a file has too many of the remark that there are more."""
    number: Counter[tuple[str, str]] = Counter()
    for each in problems:
        rule_id = each.rule.split()[0]
        number[each.file, rule_id] += 1
        if number[each.file, rule_id] <= MAX_TOLD:
            yield each
        elif number[each.file, rule_id] == MAX_TOLD + 1:
            rule = f"S109 breaks {rule_id} more often than the {MAX_TOLD} times that are listed"
            reason = f"{rule_id} is broken here again, and perhaps further on"
            yield Violation("", None, rule, reason, "correct the listed ones first").at(
                each.file, each.line, each.column
            )


def _cut(part: str) -> str:
    """Return a part of a message without the most of a text that goes on for too long: it can only be the user's."""
    short = LONG_WORD.sub(lambda word: f"{word[0][: MAX_WORD - 3]}...", part)
    return short if len(short) <= MAX_PART else f"{short[: MAX_PART - 3]}..."


def _shown(value: Any) -> str:
    """Return a value for a message: text as it is, the rest as JSON, on one line.

    It is cut where it would hide the rule.
    """
    plain = isinstance(value, str) and value.isprintable() and value and not value.isdecimal()
    text = value if plain else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

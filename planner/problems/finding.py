"""A finding: one mistake or one warning about a spec, a call or a file.

A finding tells people (`message`, one line) and programs (`as_json`) the same. Its message has four parts, joined by
`; `: field and value with the rule and its numbers, the reason, the nearest fix.
    decode.ep_size (100) must divide num_physical_experts (288 = 256 + 32 redundant); all GPUs ...; nearest: 96 or 144

A rule gives the path. The caller that has the file adds the line.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from planner.problems.fix import HERE, Change, Fix
from planner.problems.printable import printable, without_passwords

Severity = Literal["error", "infeasible", "warning"]

MAX_WORD = 200  # characters without a space; our own longest are paths of a patch's fields
MAX_PART = 2000  # assumed: longer than the longest rule of ours with its lists
LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")
INCOMPLETE_ID = "S728"  # the only S7 id that is an error: the spec lacks a value


@dataclass(frozen=True)
class Finding:
    """A broken rule, or a warning.

    Lines and columns count from 1. A line of 0 means that the finding is about a call, or about a file other than a
    spec.

    `rule` starts with its id, which is never given to another rule: `S301 must divide ...`.
    """

    path: str  # dotted: `decode.ep_size`; empty for the file as a whole
    value: Any  # raw value; None if missing, or if it may be a secret
    rule: str
    reason: str
    fix: Fix | str  # text alone if the fix needs something that only the user knows
    file: str = ""  # empty until the place is looked up
    line: int = 0
    column: int = 0
    change_files: Mapping[str, str] = field(default_factory=dict)  # path -> file that has it, if a spec has several

    def __post_init__(self) -> None:
        if may_be_secret(self.path):
            object.__setattr__(self, "value", None)

    @property
    def id(self) -> str:
        """Return the id of the rule, such as `S501`."""
        return self.rule.partition(" ")[0]

    @property
    def severity(self) -> Severity:
        """Return the severity that the id stands for: W is a warning, S7 an infeasible spec, anything else an error."""
        if self.id.startswith("W"):
            return "warning"
        return "infeasible" if self.id.startswith("S7") and self.id != INCOMPLETE_ID else "error"

    @property
    def message(self) -> str:
        """The four parts as one line. Long quotes of the user's text are shortened; `changes` have the full text."""
        return f"{self.rule_and_reason}; {_shorten(str(self.fix))}"

    @property
    def broken_rule(self) -> str:
        """The first part of the message: field and value with the rule, without the reason."""
        return replace(self, reason="").rule_and_reason.removesuffix("; ")

    @property
    def rule_and_reason(self) -> str:
        """The message without its last part, the fix."""
        _, _, rule_text = self.rule.partition(" ")
        value = "" if self.value is None else f" ({_value_in_words(self.value)})"
        path, rule, reason = map(_shorten, (self.path, rule_text, self.reason))
        return f"{path}{value} {rule}; {reason}".lstrip()

    @property
    def changes(self) -> tuple[Change, ...]:
        """The fix as alternative changes of the spec, or of the call's options. Each of them corrects the mistake."""
        found = self.fix.changes if isinstance(self.fix, Fix) else ()
        return tuple({self.path if path == HERE else path: value for path, value in each.items()} for each in found)

    def at(self, file: str, line: int = 0, column: int = 0) -> "Finding":
        """Return the finding with its place. A line of 0 means that the finding is about no single line."""
        return replace(self, file=file, line=line, column=column)

    def as_json(self) -> dict[str, Any]:
        """Return the finding as an entry of the JSON list `errors`."""
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
        return shown | self._changes_as_json()

    def _changes_as_json(self) -> dict[str, Any]:
        if not self.changes:
            return {}
        files = {path: self.change_files[path] for change in self.changes for path in change if self.change_files}
        return {"changes": [dict(change) for change in self.changes]} | ({"change_files": files} if files else {})

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return printable(without_passwords(f"{place}: {self.message} [{self.id}]"))


class Unknown(Exception):
    """Raised when a rule reads a wrong or missing value. It silences that rule; another rule reports the mistake."""


MAY_BE_SECRET = (
    *(f"kubernetes.{field}." for field in ("env", "overlay", "patches")),
    *(f"{phase}.env." for phase in ("prefill", "decode", "mixed")),
)


def may_be_secret(path: str) -> bool:
    """Return whether the value at `path`, in a spec or in a plan's copy, may be a secret and so must not be printed."""
    place = f"{path.removeprefix('spec.')}."
    return place.startswith(MAY_BE_SECRET) or place == "kubernetes."


def warnings_json(warnings: Sequence[Finding]) -> dict[str, Any]:
    """Return the `warnings` entry of `--format json`; empty if there are no warnings."""
    return {"warnings": [finding.as_json() for finding in warnings]} if warnings else {}


def _shorten(part: str) -> str:
    """Shorten long words and texts in a part of a message. Only the user's own text can be so long."""
    short = LONG_WORD.sub(lambda word: f"{word[0][: MAX_WORD - 3]}...", part)
    return short if len(short) <= MAX_PART else f"{short[: MAX_PART - 3]}..."


def _value_in_words(value: Any) -> str:
    """Return a value as one line of at most 60 characters. Plain text is unquoted, everything else is JSON."""
    plain = isinstance(value, str) and value.isprintable() and value and not value.isdecimal()
    text = value if plain else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""One thing that is wrong, or that is a warning: all that a user is told about a spec, a call or a file has this shape.

A finding says the same to people (`message`, one line) and to programs (`as_json`). Its message has four parts, joined
by `; `: field and value with the rule and its numbers, the reason, the nearest fix.
    decode.ep_size (100) must divide num_physical_experts (288 = 256 + 32 redundant); all GPUs ...; nearest: 96 or 144

A rule finds something at a path. The line is looked up later, by whoever has the file.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from planner.problems.fix import HERE, Change, Fix
from planner.problems.printable import printable, without_passwords

__all__ = ["Finding", "Severity", "Unknown", "may_be_secret", "warnings_json"]

Severity = Literal["error", "infeasible", "warning"]

MAX_WORD = 200  # characters without a space; our own longest are paths of a patch's fields
MAX_PART = 2000  # assumed: more than any rule of ours with all that it lists
LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")
UNCOUNTED = "S728"  # of the ids from S700 on, the one that the spec must say more for


@dataclass(frozen=True)
class Finding:
    """A broken rule, or a warning. Lines and columns count from 1; 0 means a call, or a file that is no spec.

    `rule` starts with its id, which is never given to another rule: `S301 must divide ...`.
    """

    path: str  # dotted: `decode.ep_size`; empty for the file as a whole
    value: Any  # as written; None where nothing is, and where it may be a secret
    rule: str
    reason: str
    fix: Fix | str  # a sentence where it takes what only the user knows
    file: str = ""  # none before the place is looked up
    line: int = 0
    column: int = 0
    change_files: Mapping[str, str] = field(default_factory=dict)  # path -> the file of several to change it in

    def __post_init__(self) -> None:
        if may_be_secret(self.path):
            object.__setattr__(self, "value", None)

    @property
    def id(self) -> str:
        """Return the id of the rule, such as `S501`."""
        return self.rule.partition(" ")[0]

    @property
    def severity(self) -> Severity:
        """Return what the id says: W is a warning, and S7 says that a right spec cannot be met."""
        if self.id.startswith("W"):
            return "warning"
        return "infeasible" if self.id.startswith("S7") and self.id != UNCOUNTED else "error"

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

    def at(self, file: str, line: int = 0, column: int = 0) -> "Finding":
        """Return the same with its place; without a line when it is about no line of any file."""
        return replace(self, file=file, line=line, column=column)

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
    """A rule asks for what is wrong or not there. Only that rule is silent; the mistake is told elsewhere."""


MAY_BE_SECRET = tuple(f"kubernetes.{field}." for field in ("env", "overlay", "patches"))


def may_be_secret(path: str) -> bool:
    """Return whether what stands at `path`, in a spec or in a plan's copy of it, may be a secret: never print it."""
    place = f"{path.removeprefix('spec.')}."
    return place.startswith(MAY_BE_SECRET) or place == "kubernetes."


def warnings_json(warnings: Sequence[Finding]) -> dict[str, Any]:
    """Return the key of `--format json` that holds `warnings`; none where there are none, as in `validate`."""
    return {"warnings": [finding.as_json() for finding in warnings]} if warnings else {}


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

"""The errors that a user can cause, and the exit status of each.

    TidemillError
    ├── SpecError         2   the spec is wrong: every mistake at once, each with its line
    ├── InfeasibleError   3   the spec is valid, but impossible to meet
    ├── CallError         2   the command line is wrong
    └── OutputError       1   the answer could not be written

Each carries `Finding`s. Our own mistakes are not here: those are `assert`s.

All mistakes are listed at once, but at most `MAX_LISTED` of a rule in a file: one S109 stands for the rest.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from planner.problems.finding import Finding

MAX_LISTED = 500  # assumed: nobody reads more findings of one rule


class TidemillError(Exception):
    """An error that a user can cause and repair."""

    exit_status: ClassVar[int]

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(findings)
        in_order = sorted(findings, key=lambda finding: (finding.file, finding.line, finding.column))
        self.findings = tuple(_limit_findings(in_order))

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


class SpecError(TidemillError):
    """The spec is wrong."""

    exit_status = 2


class InfeasibleError(TidemillError):
    """The spec is valid, but impossible to meet."""

    exit_status = 3


class CallError(TidemillError):
    """The command line is wrong."""

    exit_status = 2


class OutputError(TidemillError):
    """The answer could not be written."""

    exit_status = 1


def _limit_findings(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield at most MAX_LISTED findings of each rule and file, then one S109 that says that there are more."""
    number: Counter[tuple[str, str]] = Counter()
    for each in findings:
        number[each.file, each.id] += 1
        if number[each.file, each.id] <= MAX_LISTED:
            yield each
        elif number[each.file, each.id] == MAX_LISTED + 1:
            rule = f"S109 breaks {each.id} more often than the {MAX_LISTED} times that are listed"
            reason = f"{each.id} is broken here again, and perhaps further on"
            yield Finding("", None, rule, reason, "correct the listed ones first").at(each.file, each.line, each.column)

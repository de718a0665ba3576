"""What commands print: a result's JSON on stdout, its warnings and what else there is to say on stderr."""

import sys
from collections.abc import Sequence
from typing import Any

from planner.facts.digest import pretty_json
from planner.problems.errors import Problem
from planner.problems.printable import printable

__all__ = ["errors_json", "print_json", "say", "warn"]


def warn(warnings: Sequence[Problem]) -> None:
    """Say the warnings of a plan that is carried out, each on a line of stderr."""
    for problem in warnings:
        print(f"warning: {problem}", file=sys.stderr)


def print_json(document: Any) -> None:
    """Print the one document of `--format json`."""
    print(pretty_json(document), end="")


def errors_json(problems: Sequence[Problem]) -> dict[str, Any]:
    """Return what `--format json` has of mistakes, whatever the command."""
    return {"valid": False, "errors": [problem.as_json() for problem in problems]}


def say(sentence: str) -> None:
    """Say on stderr, at once, what is going on; it may quote what users or clusters wrote."""
    print(printable(sentence), file=sys.stderr, flush=True)

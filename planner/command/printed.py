"""What commands print of a result: its JSON on stdout, its warnings on stderr."""

import sys
from collections.abc import Sequence
from typing import Any

from planner.facts.digest import pretty_json
from planner.problems.errors import Problem

__all__ = ["errors_json", "print_json", "warn"]


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

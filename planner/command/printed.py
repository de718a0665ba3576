"""What commands print: a result's JSON on stdout, its warnings and what else there is to say on stderr."""

import sys
from collections.abc import Sequence
from typing import Any

from planner.facts.digest import pretty_json
from planner.problems.finding import Finding
from planner.problems.printable import printable

__all__ = ["errors_json", "print_json", "say", "warn"]


def warn(warnings: Sequence[Finding]) -> None:
    """Say the warnings of a plan that is carried out, each on a line of stderr."""
    for finding in warnings:
        print(f"warning: {finding}", file=sys.stderr)


def print_json(document: Any) -> None:
    """Print the one document of `--format json`."""
    print(pretty_json(document), end="")


def errors_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `--format json` has of mistakes, whatever the command."""
    return {"valid": False, "errors": [finding.as_json() for finding in findings]}


def say(sentence: str) -> None:
    """Say on stderr, at once, what is going on; it may quote what users or clusters wrote."""
    print(printable(sentence), file=sys.stderr, flush=True)

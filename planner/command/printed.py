"""Print a command's output: JSON on stdout, warnings and progress on stderr."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from planner.facts.digest import pretty_json
from planner.problems.finding import Finding
from planner.problems.printable import printable

__all__ = ["errors_json", "print_json", "say", "show_progress", "warn"]


def warn(warnings: Sequence[Finding]) -> None:
    """Print a plan's warnings to stderr, one per line."""
    for finding in warnings:
        print(f"warning: {finding}", file=sys.stderr)


def print_json(document: Any) -> None:
    """Print `document`, the whole output of `--format json`."""
    print(pretty_json(document), end="")


def errors_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the JSON document that every command prints for mistakes."""
    return {"valid": False, "errors": [finding.as_json() for finding in findings]}


def say(sentence: str) -> None:
    """Print a progress message to stderr at once, escaped: it may quote text from users or clusters."""
    print(printable(sentence), file=sys.stderr, flush=True)


@contextmanager
def show_progress(work: str) -> Iterator[None]:
    """Show `work` and the time it has taken on a terminal while the context lasts; without a terminal, show nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # takes 20 ms, which every command would wait
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bars.add_task(printable(work), total=None)
        yield

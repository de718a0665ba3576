"""The commands `explain` and `init`: what a rule or a field is, and a first spec."""

import argparse
from typing import Any

from planner.command.options import add_command, add_format
from planner.command.printed import print_json

__all__ = ["add_explain"]


def add_explain(commands: Any) -> None:
    """Add `explain`."""
    explain = add_command(
        commands,
        "explain",
        "say what a rule or a field of the spec is",
        "Say what a rule checks, with one of its messages; or what a field takes, its default, its meaning, an "
        "example, what others call it, and the rules that speak of it.",
    )
    explain.add_argument("name", metavar="RULE|FIELD", help="an id such as S501, or a path such as decode.ep_size")
    add_format(explain)
    explain.set_defaults(command=_explain)


def _explain(arguments: argparse.Namespace) -> None:
    from planner.guide.explain import explain, explanation_text

    told = explain(arguments.name)
    if arguments.format == "json":
        print_json(told)
    else:
        print(explanation_text(told), end="")

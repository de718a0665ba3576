"""A command's place in `--help`, and the options that several commands have."""

import argparse
from pathlib import Path
from typing import Any

__all__ = ["EXIT_STATUSES", "add_command", "add_format", "add_given", "add_overlays", "add_previous", "add_spec"]

EXIT_STATUSES = (
    "Exit status: 0 done, 1 failed at run time, 2 the spec or the call is wrong, 3 the spec is right but cannot be met."
)


def add_command(commands: Any, name: str, short: str, long: str) -> argparse.ArgumentParser:
    """Add a command with a line in the list of all, and a description of its own."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=short, description=long, epilog=EXIT_STATUSES)
    return parser


def add_given(parser: argparse.ArgumentParser, *, default: str | None = None, metavar: str = "SPEC|PLAN.json") -> None:
    """Add the file that a command carries out; `default` says what it does without one, where it may be left out."""
    told_apart = "a spec in YAML, a plan in JSON, recognised by its content, or a rendered folder"
    parser.add_argument(
        "given",
        nargs="?" if default else None,
        type=Path,
        metavar=metavar,
        help=f"{told_apart}; default: {default}" if default else told_apart,
    )
    add_overlays(parser)


def add_spec(parser: argparse.ArgumentParser) -> None:
    """Add the spec, and its overlays, of commands that take nothing else."""
    parser.add_argument("spec", type=Path, metavar="SPEC", help="a YAML file")
    add_overlays(parser)


def add_overlays(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that read a spec."""
    parser.add_argument(
        "-f",
        dest="overlays",
        action="append",
        default=[],
        type=Path,
        metavar="OVERLAY",
        help="a YAML file with what differs from the spec: its keys replace the spec's, null takes them away; "
        "may be repeated, and later ones win",
    )


def add_previous(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that plan."""
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="PLAN.json",
        help="an earlier plan, or a rendered folder: units stay on its nodes, and phases keep its expert maps unless "
        "better ones are worth a restart",
    )


def add_format(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the option that every command has; `more` are formats besides text and JSON."""
    choices = ("text", *more, "json")
    parser.add_argument("--format", choices=choices, default="text", help="output format; default: text")

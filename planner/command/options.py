"""Add a command with its help text, and add the options that several commands share."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# command -> (arguments of an example call, the purpose of the call)
EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = json.loads(
    Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
)
MAX_CALL = 56  # characters; the purposes of longer calls are not aligned with the others
EXIT_STATUSES = (
    "Exit status: 0 done, 1 failed at run time, 2 the spec or the call is wrong, 3 the spec is right but cannot be met."
)


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps a description and an epilog line by line, and leaves indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrap = super()._fill_text
        return "\n".join(line if line[:1] in ("", " ") else wrap(line, width, indent) for line in text.splitlines())


def add_command(commands: Any, name: str, short: str, long: str) -> argparse.ArgumentParser:
    """Add a command with its line in the list of commands (`short`), its description (`long`) and its examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=short, description=long, formatter_class=_HelpFormatter
    )
    parser.epilog = f"{_examples_text(parser.prog)}{EXIT_STATUSES}"
    return parser


def add_color(parser: argparse.ArgumentParser) -> None:
    """Add the option `--color`, for commands whose text has colours."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the text; auto: on a terminal, unless NO_COLOR is set",
    )


def _examples_text(command: str) -> str:
    """Return the example calls of `command`, each on a line with its purpose."""
    calls = [(f"{command} {words}".strip(), purpose) for words, purpose in EXAMPLES.get(command.partition(" ")[2], ())]
    width = max((len(call) for call, _ in calls if len(call) <= MAX_CALL), default=0)
    lines = [f"  {call:<{width}}  {purpose}".rstrip() for call, purpose in calls]
    return "\n".join(["Examples:", *lines, "", ""]) if lines else ""


def add_spec_or_plan(
    parser: argparse.ArgumentParser, *, default: str | None = None, metavar: str = "SPEC|PLAN.json"
) -> None:
    """Add the positional argument for a spec or plan, and the option `-f`.

    With a `default`, the argument is optional, and `default` says what happens without it.
    """
    accepted = "a spec in YAML, a plan in JSON, recognised by its content, or a rendered folder"
    parser.add_argument(
        "given",
        nargs="?" if default else None,
        type=Path,
        metavar=metavar,
        help=f"{accepted}; default: {default}" if default else accepted,
    )
    add_overlays(parser)


def add_spec(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument for a spec, and the option `-f`, for commands that take no plan."""
    parser.add_argument("spec", type=Path, metavar="SPEC", help="a YAML file")
    add_overlays(parser)


def add_overlays(parser: argparse.ArgumentParser) -> None:
    """Add the option `-f` for overlays of a spec."""
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
    """Add the option `--previous` for an earlier plan."""
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="PLAN.json",
        help="an earlier plan, or a rendered folder: units stay on its nodes, and phases keep its expert maps unless "
        "better ones are worth a restart",
    )


def add_format(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the option `--format`; `more` are further formats beside text and JSON."""
    choices = ("text", *more, "json")
    parser.add_argument("--format", choices=choices, default="text", help="output format; default: text")

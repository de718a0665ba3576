"""The commands `explain` (a rule or a field), `schema` (all fields, for editors) and `init` (a first spec)."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from planner.command.options import add_command, add_format
from planner.command.printed import print_json, print_line, say


def add_explain(commands: Any) -> None:
    """Add the command `explain`."""
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


def add_schema(commands: Any) -> None:
    """Add the command `schema`."""
    schema = add_command(
        commands,
        "schema",
        "print the spec's JSON Schema, for editors",
        "Print the JSON Schema of specs: every field with its range, default, meaning and examples.",
    )
    add_format(schema)
    schema.set_defaults(command=_schema)


def add_init(commands: Any) -> None:
    """Add the command `init`."""
    from planner.guide.questions import QUESTIONS

    init = add_command(
        commands,
        "init",
        "write a first spec, by six questions",
        "Write a first spec with comments: what the planner can decide is auto. Asks six questions on a terminal; with "
        "options, or without a terminal, it asks nothing. It overwrites no file.",
    )
    for each in QUESTIONS:
        needed = (
            f"needed without a terminal, for example {each.default}" if each.is_required else f"default: {each.default}"
        )
        init.add_argument(each.option, metavar=each.metavar, help=f"{each.words}; {needed}")
    init.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FILE",
        default=Path("spec.yaml"),
        help="the file to write; default: spec.yaml",
    )
    add_format(init)
    init.set_defaults(command=_init)


def _explain(arguments: argparse.Namespace) -> None:
    from planner.guide.explain import explain, explanation_text

    found = explain(arguments.name)
    if arguments.format == "json":
        print_json(found)
    else:
        print(explanation_text(found), end="")


def _schema(_: argparse.Namespace) -> None:
    from pydantic.json_schema import GenerateJsonSchema

    from planner.spec.schema import Spec

    print_json({"$schema": GenerateJsonSchema.schema_dialect, **Spec.model_json_schema()})


def _init(arguments: argparse.Namespace) -> None:
    from planner.guide.first_spec import first_spec, require_new, write_new
    from planner.guide.questions import QUESTIONS, ask, read_options

    require_new(arguments.output)
    given = {each.option: getattr(arguments, each.option.removeprefix("--")) for each in QUESTIONS}
    is_asked = not any(given.values()) and sys.stdin.isatty() and sys.stderr.isatty()
    if is_asked:
        say("Enter takes what stands in brackets. Nothing is written before the last answer.")
    text = first_spec(ask(_read_line) if is_asked else read_options(given), arguments.output)
    write_new(arguments.output, text)
    if arguments.format == "json":
        print_json({"file": str(arguments.output), "spec": text})
    else:
        print_line(f"{arguments.output}: written; next: tidemill plan {shlex.quote(str(arguments.output))}")


def _read_line(prompt: str) -> str:
    """Return the user's next line. The prompt goes to stderr, because stdout has the result."""
    print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()

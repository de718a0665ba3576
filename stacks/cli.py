"""The `tidemill` command: the planner's commands, and those that run something on this machine.

    up, down, key           a plan as processes here, and an API key for its gateway
    status                  units here, or in a cluster
    experts --from          the loads that running ranks have recorded, for the next plan
    experts apply           another expert map for a unit that serves here
    doctor                  a cluster as it is against a plan
    controller              units in a cluster that follow the plan's day
    hold, force             a person's orders to it
    simulate                a day of a spec's traffic over its plan
    gitops                  changes of a spec, proposed and checked before they are merged
    completion              a script for a shell
    generate, checkpoint    the runtime's own commands: a checkpoint offline, and its manifest

No command waits for another's imports: a file is imported when one of its commands is called. `planner/command`
says how results and mistakes are reported.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from planner.command.options import add_command
from planner.command.run import new_parser, run, run_and_report

__all__ = ["add_completion", "main"]

# command -> the file whose `add_COMMAND` adds it, in the order of --help
COMMANDS = {
    "init": "planner.guide.cli",
    "explain": "planner.guide.cli",
    "validate": "planner.cli",
    "schema": "planner.guide.cli",
    "plan": "planner.cli",
    "report": "planner.cli",
    "diff": "planner.cli",
    "experts": "planner.experts.cli",
    "render": "planner.cli",
    "accuracy": "planner.accuracy.cli",
    "up": "stacks.local.up_cli",
    "down": "stacks.local.up_cli",
    "status": "stacks.live.status_cli",
    "key": "stacks.local.up_cli",
    "doctor": "stacks.doctor.cli",
    "controller": "stacks.controller.cli",
    "hold": "stacks.controller.order_cli",
    "force": "stacks.controller.order_cli",
    "simulate": "stacks.simulator.cli",
    "gitops": "stacks.gitops.cli",
    "completion": "stacks.cli",
}
IN_RUNTIME = {
    "generate": "generate text from a checkpoint, offline",
    "checkpoint": "compute the digests of a checkpoint",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (None: the command line) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # the process does nothing else, and ends with this call
        gc.freeze()  # objects of modules are no garbage: collections, the last one too, need not look through them
    if words and words[0] in IN_RUNTIME:  # the runtime has one parser of its own, and one help text
        return run_and_report(lambda: _run_in_runtime(words), words)
    return run(_new_parser(words), words)


def add_completion(commands: Any) -> None:
    """Add the command `completion`."""
    completion = add_command(
        commands,
        "completion",
        "print a script that completes commands in a shell",
        "Print a script by which bash, zsh or fish completes commands, options and their values.",
    )
    completion.add_argument("shell", choices=("bash", "fish", "zsh"), metavar="SHELL", help="bash, fish or zsh")
    completion.set_defaults(command=_completion)


def _completion(arguments: argparse.Namespace) -> None:
    from shtab import FILE, complete

    parser = _new_parser([])
    _complete_file_names(FILE, parser)
    print(complete(parser, arguments.shell))


def _complete_file_names(files: Any, parser: argparse.ArgumentParser) -> None:
    """Let shells complete file names for arguments without fixed choices. `files` is shtab's marker for file names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_file_names(files, command)
        elif action.nargs != 0 and not action.choices:
            action.complete = files  # type: ignore[attr-defined]


def _new_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the command that `words` call. If they call none, it parses all commands."""
    parser = new_parser("Plan and run DeepSeek-class mixture-of-experts inference.")
    _add_commands(parser.add_subparsers(metavar="COMMAND", required=True), words)
    return parser


def _add_commands(commands: Any, words: Sequence[str]) -> None:
    """Add the command that `words` name; if they name none, add all, so that --help can list them."""
    called = words[0] if words else ""
    if called == "experts" and any(word.partition("=")[0] == "--from" for word in words):
        _add(commands, "recorded", "stacks.live.cli")
    elif words[:2] == ["experts", "apply"]:
        _add(commands, "apply", "stacks.local.apply_cli")
    elif called in COMMANDS:
        _add(commands, called, COMMANDS[called])
    else:
        for command, file in COMMANDS.items():
            _add(commands, command, file)
        for command, short in IN_RUNTIME.items():
            commands.add_parser(command, help=short, add_help=False)


def _add(commands: Any, command: str, file: str) -> None:
    getattr(import_module(file), f"add_{command}")(commands)


def _run_in_runtime(words: Sequence[str]) -> int:
    from stacks.local.runtime_cli import run_in_runtime

    return run_in_runtime(words)


if __name__ == "__main__":
    sys.exit(main())

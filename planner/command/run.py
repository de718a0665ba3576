"""Run a command: parse the command line, report errors, and return the exit status.

Results go to stdout, everything else to stderr, and with `--format json` one document is printed. The exit status is 0,
1, 2 or 3. A user can never cause a traceback: commands print, or raise TidemillError. A command that prints a bad
result without raising returns the exit status itself.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NoReturn

from planner.command.options import EXIT_STATUSES
from planner.command.printed import errors_json, print_json
from planner.problems.calls import Parser
from planner.problems.errors import TidemillError
from planner.problems.finding import Finding

INTERRUPTED = 130  # 128 + SIGINT, as shells count


class _SayVersion(argparse.Action):
    """Prints the installed version, which is looked up only on request."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib import metadata

        print(f"tidemill {metadata.version('tidemill')}")
        parser.exit()


def new_parser(description: str) -> Parser:
    """Return the parser of `tidemill`, without commands."""
    parser = Parser(prog="tidemill", description=description, epilog=EXIT_STATUSES)
    parser.add_argument("--version", action=_SayVersion, nargs=0, help="print the version and exit")
    return parser


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse `argv` and run its command (the parser's `command` default); report errors and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_and_report(lambda: _run(parser, words), words)


def run_and_report(command: Callable[[], int], words: Sequence[str]) -> int:
    """Run `command`, report its errors, and return its exit status. `words`, the command line, may ask for JSON."""
    if sys.stdout is None:  # the caller closed it: the first file that we open would become stdout
        print("tidemill: the result cannot be written: stdout is closed", file=sys.stderr)
        return 1
    status = 0
    try:
        status = _report_mistakes(command, words)
        sys.stdout.flush()
    except OSError as error:  # from stdout: commands report the errors of their own files
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # whoever read our output, `head` for example, has seen enough
            print(f"tidemill: the result cannot be written: {error.strerror}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _report_mistakes(command: Callable[[], int], words: Sequence[str]) -> int:
    try:
        return command()
    except TidemillError as error:
        with suppress(BrokenPipeError):  # the exit status tells the mistake even if nobody reads the output
            _report(error.findings, as_json=wants_json(words))
        return error.exit_status


def wants_json(words: Sequence[str]) -> bool:
    """Return whether the command line asks for JSON, even if its other words are wrong."""
    return "--format=json" in words or ("--format", "json") in pairwise(words)


def _run(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    arguments = parser.parse_args(words)
    return int(arguments.command(arguments) or 0)


def _report(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json(errors_json(findings))
    else:
        for finding in findings:
            print(finding, file=sys.stderr)

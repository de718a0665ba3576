"""A wrong command line: what argparse finds, reported like any other mistake.

It knows no command: `cli.py` and `stacks/cli.py` build theirs from this parser.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import close_to

__all__ = ["Parser"]

# Commands as other tools call them -> as we do.
OTHER_COMMANDS = {
    **dict.fromkeys(("check", "lint"), "validate"),
    **dict.fromkeys(("template", "manifests", "build"), "render"),
    **dict.fromkeys(("run", "start", "serve", "deploy", "apply"), "up"),
    **dict.fromkeys(("stop", "delete", "destroy"), "down"),
    **dict.fromkeys(("ps", "list", "get"), "status"),
}

OPTIONS = {"help": "--help", "version": "--version"}  # that other tools have as commands
OUTPUTS = ("--out", "--output", "--out-dir", "--output-dir", "--outdir", "--out-file", "--output-file")  # as others say


class Parser(argparse.ArgumentParser):
    """An argument parser that raises CallError, so that a wrong call is reported like any other mistake.

    Options have one name each: a prefix that argparse would take for one today may be two options' tomorrow.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing and leaving."""
        self._refuse(message, f"see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown words where they were written: the command knows its options, the top parser only commands.

        A wrong name of an option is refused first, since the right one may be missing because of it.
        """
        wrong = self._unknown_option(sys.argv[1:] if args is None else args)
        found, unknown = (namespace, [wrong]) if wrong else super().parse_known_args(args, namespace)
        if unknown:
            meant = self._nearest(unknown[0].partition("=")[0])
            fix = f"did you mean {' or '.join(meant)}?" if meant else f"see {self.prog} --help"
            self._refuse(f"{' '.join(unknown)} is not known", fix)
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a choice that there is not, with the one that it is like."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(each) for each in action.choices or ()]
            other = OTHER_COMMANDS.get(value)
            meant = other if other in choices else OPTIONS.get(value) or close_to(value, choices)
            self._refuse(str(error), f"did you mean {meant}?" if meant else f"see {self.prog} --help")

    def _unknown_option(self, words: Sequence[str]) -> str | None:
        """Return the first of `words` that looks like an option but is none of this parser's.

        Words after a command are the command's.
        """
        ours = takewhile(lambda word: self._subparsers is None or word.startswith("-"), words)
        options = (word for word in takewhile(lambda word: word != "--", ours) if word.startswith("--"))
        return next((word for word in options if word.partition("=")[0] not in self._option_string_actions), None)

    def _nearest(self, word: str) -> list[str]:
        """Return the options that begin with `word`, else the one that it is like."""
        if word in OUTPUTS and "-o" in self._option_string_actions:
            return ["-o"]
        begun = [option for option in self._option_string_actions if option.startswith(word)]
        close = close_to(word, list(self._option_string_actions))
        return begun or ([close] if close else [])

    def _refuse(self, reason: str, fix: str) -> NoReturn:
        raise CallError([Finding("", None, "S900 was called wrongly", reason, fix).at(self.prog)])

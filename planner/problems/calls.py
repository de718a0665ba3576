"""An argument parser that reports a wrong command line like any other mistake.

It defines no command: `cli.py` and `stacks/cli.py` build theirs from it.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import closest_choice


class Parser(argparse.ArgumentParser):
    """An argument parser that raises CallError, so that a wrong call is reported like any other mistake.

    Abbreviated options are refused: a prefix that is unique today may be ambiguous tomorrow.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise CallError; argparse would print and exit."""
        self._refuse(message, f"see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Return the parsed arguments. Raises CallError if some are unknown to this parser.

        A misspelt option is refused first, since it may be the reason why a required option is missing.
        """
        wrong = self._unknown_option(sys.argv[1:] if args is None else args)
        found, unknown = (namespace, [wrong]) if wrong else super().parse_known_args(args, namespace)
        if unknown:
            meant = self._similar_options(unknown[0].partition("=")[0])
            fix = f"did you mean {' or '.join(meant)}?" if meant else f"see {self.prog} --help"
            self._refuse(f"{' '.join(unknown)} is not known", fix)
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among an option's choices, and suggest a similar one."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            meant = closest_choice(value, [str(each) for each in action.choices or ()])
            self._refuse(str(error), f"did you mean {meant}?" if meant else f"see {self.prog} --help")

    def _unknown_option(self, words: Sequence[str]) -> str | None:
        """Return the first of `words` that looks like an option but is unknown to this parser, or None.

        Words after a command belong to the command's parser.
        """
        ours = takewhile(lambda word: self._subparsers is None or word.startswith("-"), words)
        options = (word for word in takewhile(lambda word: word != "--", ours) if word.startswith("--"))
        return next((word for word in options if word.partition("=")[0] not in self._option_string_actions), None)

    def _similar_options(self, word: str) -> list[str]:
        """Return the options that begin with `word`, else the option with a similar name, if any."""
        begun = [option for option in self._option_string_actions if option.startswith(word)]
        close = closest_choice(word, list(self._option_string_actions))
        return begun or ([close] if close else [])

    def _refuse(self, reason: str, fix: str) -> NoReturn:
        raise CallError([Finding("", None, "S900 was called wrongly", reason, fix).at(self.prog)])

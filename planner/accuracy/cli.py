"""The command `accuracy`: published measurements beside what is predicted of them."""

import argparse
from pathlib import Path
from typing import Any

from planner.command.options import add_command, add_format
from planner.command.printed import print_json, show_progress


def add_accuracy(commands: Any) -> None:
    """Add the command `accuracy` to `commands`, the result of argparse's `add_subparsers`."""
    accuracy = add_command(
        commands,
        "accuracy",
        "compare predictions with what was published",
        "Predict everything that was published and is known here, and show the errors: by GPU, model and phase, then "
        "row by row, with what is fitted to which row. Files with your own measurements come last.",
    )
    accuracy.add_argument("files", nargs="*", type=Path, metavar="FILE", help="your own measurements, in YAML")
    add_format(accuracy)
    accuracy.set_defaults(command=_accuracy)


def _accuracy(arguments: argparse.Namespace) -> None:
    from planner.accuracy.board import make_board
    from planner.accuracy.rows import read_rows
    from planner.accuracy.text import board_text

    rows = [row for path in arguments.files for row in read_rows(path)]
    with show_progress("predicting what was published"):
        board = make_board(rows)
    if arguments.format == "json":
        print_json(board.model_dump(mode="json"))
    else:
        print(board_text(board), end="")

"""`docs/accuracy.md`, the board of published measurements, and the engines' constants that they give."""

from planner.accuracy.board import make_board
from planner.accuracy.fit import engines_document
from planner.accuracy.predicted import Predicted
from planner.accuracy.rows import published_rows
from planner.accuracy.text import board_text
from planner.facts.digest import pretty_json
from tests.docs.rooms_table import ROOT

__all__ = ["ENGINES", "accuracy_page", "engines_file"]

ENGINES = ROOT / "planner" / "estimate" / "throughput" / "engines.json"
HEAD = (ROOT / "tests" / "docs" / "accuracy_head.txt").read_text()


def accuracy_page():
    """The page: what its columns mean, then the board."""
    return f"{HEAD}\n{board_text(make_board())}"


def engines_file():
    """The constants that all rows give."""
    return pretty_json(engines_document([Predicted(row) for row in published_rows()]))

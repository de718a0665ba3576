"""The walk-through of one token names functions that exist."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walkthrough-token.md"
MOST_STOPS = 20


def stops():
    """Return (number, file, function) of each stop."""
    lines = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [
        (int(number), *(cell.strip(" `") for cell in cells)) for number, *cells in lines if number.strip().isdigit()
    ]


def functions(body, prefix=""):
    """Yield the dotted names of functions in `body`, methods included."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")


@pytest.mark.parametrize(("number", "file", "function"), stops())
def test_every_stop_exists(number, file, function):
    """Each stop names a file below `runtime/` and a function of it."""
    assert function in set(functions(ast.parse((ROOT / "runtime" / file).read_text()).body))


def test_the_way_is_short():
    """There are at most 20 stops, numbered in order."""
    numbers = [number for number, _, _ in stops()]

    assert numbers == list(range(1, len(numbers) + 1))
    assert 10 < len(numbers) <= MOST_STOPS

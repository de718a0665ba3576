"""What is compiled when: before anything is timed, and not without a word."""

import subprocess
import sys

import numba
import pytest

from planner.cli import announce_compiling
from planner.expert_map.compiled import on_compiling


@pytest.mark.slow
def test_nothing_is_compiled_after_prepare():
    """Of all policies, efforts, nodes, groups, domains, splits, previous maps and windows: see `signatures.py`."""
    command = [sys.executable, "-m", "tests.planner.expert_map.signatures"]
    late = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert late == ""


def test_one_is_told_once_and_only_when_something_is_compiled():
    """Of two functions the first tells; what is compiled already is silent."""
    functions = [numba.njit(lambda number: number + 1), numba.njit(lambda number: number + 2)]
    told = []
    for _ in range(2):
        with on_compiling(lambda: told.append("compiling")):
            for function in functions:
                function(1)

    assert told == ["compiling"]


def test_who_waits_is_told(capsys):
    """On stderr, at a terminal and in a log alike: a minute of silence looks like a hang."""
    with announce_compiling():
        numba.njit(lambda number: number + 1)(1)
    said = capsys.readouterr()

    assert said.out == ""
    assert "compiling" in said.err

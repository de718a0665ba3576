"""Specs with several mistakes each, as people make them: all messages at once, each with its line, exactly.

`several_mistakes/NAME.yaml` is a spec, `NAME.txt` beside it what `tidemill validate` prints.
"""

from pathlib import Path

import pytest

from planner.cli import main

SPECS = sorted((Path(__file__).parent / "several_mistakes").glob("*.yaml"))
FEWEST = 20


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_all_mistakes_of_a_spec_are_said_at_once(path, monkeypatch, capsys):
    """At least two, in the order of their lines."""
    monkeypatch.chdir(path.parent)
    status = main(["validate", path.name])
    messages = capsys.readouterr().err

    assert (status, messages) == (2, path.with_suffix(".txt").read_text())
    assert messages.count("\n") >= 2


def test_there_are_enough_of_them():
    """At least twenty, and no expectation without its spec."""
    assert len(SPECS) >= FEWEST
    assert {path.stem for path in SPECS} == {path.stem for path in SPECS[0].parent.glob("*.txt")}

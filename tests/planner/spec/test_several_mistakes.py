"""Specs with several mistakes each, as people make them: each is said at once, on its line, and none hides another.

`several_mistakes/NAME.yaml` is a spec; each line of `NAME.txt` beside it has the line, the rule and the path of one.
"""

from pathlib import Path

import pytest

from planner.problems.errors import SpecError
from planner.rules.check import check_spec

SPECS = sorted((Path(__file__).parent / "several_mistakes").glob("*.yaml"))
FEWEST = 20


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_all_mistakes_of_a_spec_are_said_at_once(path):
    """At least two, in the order of their lines."""
    with pytest.raises(SpecError) as error:
        check_spec(path)

    found = [f"{each.line} {each.rule[:4]} {each.path}".rstrip() for each in error.value.findings]
    assert found == path.with_suffix(".txt").read_text().splitlines()
    assert len(found) >= 2


def test_there_are_enough_of_them():
    """At least twenty, and no expectation without its spec."""
    assert len(SPECS) >= FEWEST
    assert {path.stem for path in SPECS} == {path.stem for path in SPECS[0].parent.glob("*.txt")}

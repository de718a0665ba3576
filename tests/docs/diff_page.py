"""The example in `docs/diff.md`: new expert loads and a price, for six units on forty nodes."""

import re

from planner.compiler import run_passes
from planner.diff.pair import Pair
from planner.diff.text import diff_text
from planner.rules.check import change_spec
from tests.docs.rooms_table import ROOT
from tests.planner.diff.pairs import base

__all__ = ["diff_page"]

MARKED = re.compile(r"(<!-- example, .*? -->\n```\n).*?(```\n<!-- end of example -->\n)", re.S)


def diff_page() -> str:
    """The page as it stands, with the example written anew."""
    spec, before = base(40)
    found = run_passes(change_spec(spec, {"expert_load.seed": 3, "cost.usd_per_gpu_hour": 2.1}), before)
    text = diff_text(Pair.of(before, found).compare())
    return MARKED.sub(lambda found: f"{found[1]}{text}{found[2]}", (ROOT / "docs" / "diff.md").read_text())

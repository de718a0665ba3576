"""Published and plausible layouts: each plans, or the planner says truthfully why not.

`pytest -s` prints the table; `docs/published-layouts.md` is the same.
"""

import pytest

from tests.planner.published_layouts.layouts import (
    LAYOUTS,
    changes_hardware_or_weights,
    compiled,
    data_of,
    fixed,
    verdict_of,
)

MAX_FIXES = 4  # one after the other, from a spec to one that plans
ENDS = ("describe it", "at the nodes that have it")  # where no fix can lead on; other engines' flags have words

COMPILED = (
    "two nodes of 8 H100 in FP8, TP16",
    "4 of a node's 8 B200 in NVFP4, TP4 with EP",
    "Ant Group on H20, TP8 prefill and EP16 decode, KV in FP8",
    "DeepSeek-V3's report, attention over 4 GPUs, EP32 and EP320",
)

by_name = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout["what"])


@by_name
def test_a_layout_plans_or_says_why_not(layout):
    """Rules and memory, with room for the KV that was published to fit, or the problems that are told in the table."""
    verdict = verdict_of(data_of(layout))
    print(f"\n{layout['what']}\n    {verdict.in_words()}")
    room = {each.phase: each.kv_tokens for each in verdict.memory}

    assert [problem.rule[:4] for problem in verdict.findings] == layout.get("refused", [])
    assert all(room[phase] >= tokens for phase, tokens in layout.get("holds", {}).items())
    assert layout.get("words", "") in verdict.in_words()


@by_name
def test_every_fix_leads_to_a_plan(layout):
    """Fixes are applied one after the other; model, GPUs, nodes and weights stay, and the end is a plan."""
    data = data_of(layout)
    verdict = verdict_of(data)
    if "after" in layout:
        assert [dict(change) for change in verdict.findings[0].changes] == layout["after"]

    assert_leads_to_a_plan(data, verdict, layout, MAX_FIXES)


def assert_leads_to_a_plan(data, verdict, layout, left):
    """Whichever of the fixes somebody takes."""
    if not verdict.findings:
        return
    mended = fixed(data, verdict)
    is_of_fields = all(problem.rule.startswith("S2") for problem in verdict.findings)
    assert mended or is_of_fields or any(end in verdict.in_words() for end in ENDS)
    assert left, "the fixes lead round and round"
    for each in mended:
        assert changes_hardware_or_weights(data, each) == set()
        assert_leads_to_a_plan(each, verdict_of(each), layout, left - 1)


@pytest.mark.parametrize("name", COMPILED)
def test_a_layout_has_a_whole_plan(name):
    """Placed, with maps and launch documents. It names no checkpoint, so the bundled runtime refuses it."""
    plan = compiled(data_of(next(each for each in LAYOUTS if each["what"] == name)))

    assert {problem.rule[:4] for problem in plan.refusals} >= {"S702"}
    assert plan.as_json()["memory"].keys() == plan.as_json()["phases"].keys()


def test_there_are_forty_with_their_sources():
    """Each says where it was published, or that somebody would write it."""
    assert len({layout["what"] for layout in LAYOUTS}) == len(LAYOUTS) >= 40
    assert all(layout["source"] for layout in LAYOUTS)
    assert sum(layout["source"] == "plausible" for layout in LAYOUTS) < len(LAYOUTS) / 3

"""A change is what both plans say: pods as rendered, bytes as maps differ, and nothing where nothing changes."""

import re
from dataclasses import replace

import pytest

from planner.compiler import compile_plan
from planner.diff.change import WarningSides
from planner.diff.diff import compare_plans
from planner.diff.text import diff_text
from planner.problems.finding import Finding
from planner.report.report import format_value
from planner.rules.check import change_spec
from tests.planner.diff.pairs import KINDS, base, changed, check_pair

SIZE = 40


@pytest.mark.parametrize("kind", ["expert loads", "decode for prefill", "another EP size", "namespace", "price"])
def test_a_change_equals_the_difference_of_both_plans(kind):
    """Restarts are those of rendered templates, bytes those of maps, and the reverse change mirrors it."""
    check_pair(base(SIZE)[1], changed(SIZE, kind))


def test_equal_plans_make_an_empty_change():
    """No pod ends, no slot or node changes, nobody is warned, and figures are the same on both sides."""
    plan = base(SIZE)[1]
    change = compare_plans(plan, plan)

    assert (change.verdict, change.minutes, set(change.least_capacity.values())) == ("no_restart", 0, {1.0})
    assert {each.change for each in change.units} == {"kept"}
    assert (change.experts.slots_changed, change.experts.bytes, change.weights.units) == (0, 0, 0)
    assert (change.nodes.taken, change.nodes.freed) == ((), ())
    assert (change.warnings.new, change.warnings.gone, change.assumed) == ((), (), ())
    assert all(each.before == each.after for each in (*change.performance.values(), change.cost, change.schedule))


def test_a_warning_in_other_numbers_is_shown_with_both():
    """It is neither new nor gone: it may have got worse."""
    more = change_spec(base(SIZE)[0], {"traffic.output_tokens": 400e9})
    change = compare_plans(changed(SIZE, "more traffic"), compile_plan(more, changed(SIZE, "more traffic")))
    old, new = (side["highest_load_of_most"] for side in vars(change.performance["decode"]).values())
    (worse,) = change.warnings.changed
    text = " ".join(diff_text(change).split())

    assert (worse.after.id, change.warnings.new, change.warnings.gone) == ("W138", (), ())
    assert re.search(r"changed: traffic asks for [\d.]+ -> [\d.]+ times", text)
    assert f"peak load, % of capacity: {format_value(old)} -> {format_value(new)}" in text


def test_a_latency_is_told_with_the_load_that_it_is_predicted_at():
    """With traffic and an SLO prefill is predicted at another load, and its TTFT with it: that is no regression."""
    left_out = ("traffic", "schedule", "cost", "operating_point", "kubernetes.controller")
    spec = change_spec(base(SIZE)[0], {**dict.fromkeys(left_out), "decode.units": 2, "prefill.units": 4})
    more = {"traffic": {"input_tokens": 60e9, "output_tokens": 8e9}, "slo.ttft_ms": 9000}
    before, after = compile_plan(spec), compile_plan(change_spec(spec, more))
    text = " ".join(diff_text(compare_plans(before, after)).split())

    assert "peak load, % of capacity: no traffic -> " in text
    assert re.search(r"busy time assumed for this TTFT: [\d.]+% -> [\d.]+%", text)


def test_a_changed_warning_shows_both_numbers_and_no_fix():
    """Numbers in brackets are one value with their range, so they change together."""
    before = Finding("traffic", None, "W138 asks for 121% (60% to 130%)", "some wait", "plan more for 10:00, 14:00")
    after = replace(before, rule="W138 asks for 216% (90% to 230%)", fix="plan more for 10:00")
    change = compare_plans(base(SIZE)[1], base(SIZE)[1])
    moves = change.warnings.model_copy(update={"changed": (WarningSides(before=before, after=after),)})
    text = " ".join(diff_text(change.model_copy(update={"warnings": moves})).split())

    assert "changed: traffic asks for 121% -> 216% (60% to 130%) -> (90% to 230%); some wait [W138]" in text


def test_a_warning_of_one_plan_is_new_or_gone():
    """A promise that is missed brings one of its own."""
    there = compare_plans(base(SIZE)[1], changed(SIZE, "promise"))
    back = compare_plans(changed(SIZE, "promise"), base(SIZE)[1])

    assert [each.id for each in there.warnings.new] == ["W115"]
    assert [each.id for each in back.warnings.gone] == ["W115"]
    assert "TPOT promised in ms: none -> 50" in diff_text(there)


def test_figures_stand_side_by_side():
    """A price changes the bill and no other figure."""
    change = compare_plans(base(SIZE)[1], changed(SIZE, "price"))
    bills = [side["usd_per_day"].value for side in (change.cost.before, change.cost.after)]

    assert bills[1] == pytest.approx(bills[0] * 3 / 2)
    assert all(each.before == each.after for each in change.performance.values())


def test_what_nothing_switches_stays_on():
    """Without a controller all units stay on: verdict, day and cost must not contradict each other."""
    executed = compare_plans(base(SIZE)[1], changed(SIZE, "fewer decode units"))
    spec = change_spec(base(SIZE)[0], {"kubernetes.controller": None})
    fewer = KINDS["fewer decode units"](spec)
    plan = compile_plan(spec)
    change = compare_plans(plan, compile_plan(change_spec(spec, fewer)))
    text = diff_text(change)

    assert executed.schedule.is_executed
    assert not change.schedule.is_executed
    assert text.count("as scheduled, but without kubernetes.controller all units stay on") == 1
    assert change.cost.before["usd_per_day"].value == 24 * 8 * 2 * sum(len(unit.nodes) for unit in plan.units)


def test_a_state_is_compared_with_the_one_that_held_before():
    """Also where only one of the plans switches units at that time."""
    spec, before = base(SIZE)
    windows = [
        {"at": "07:00", "prefill_units": 4, "decode_units": 2},
        {"at": "00:00", "prefill_units": 2, "decode_units": 1},
    ]
    change = compare_plans(before, compile_plan(change_spec(spec, {"schedule.windows": windows}), before))

    assert "  day       from 07:00: nodes 17 -> 34, prefill 2 -> 4, decode 1 -> 2\n" in diff_text(change)

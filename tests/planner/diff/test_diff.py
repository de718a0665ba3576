"""A change is what both plans say: pods as rendered, bytes as maps differ, and nothing where nothing changes."""

import pytest

from planner.diff.diff import compare_plans
from tests.planner.diff.pairs import base, changed, check_pair

SIZE = 40


@pytest.mark.parametrize("kind", ["expert loads", "decode for prefill", "another EP size", "namespace", "price"])
def test_a_change_is_what_the_plans_say(kind):
    """Restarts are those of the rendered templates, bytes those of the maps, and the way back mirrors the way there."""
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


def test_a_warning_in_other_numbers_is_not_new():
    """More traffic than before is the same warning; a promise that is missed brings one of its own."""
    found = compare_plans(base(SIZE)[1], changed(SIZE, "promise")).warnings

    assert [each.id for each in found.new] == ["W115"]
    assert found.gone == ()


def test_figures_stand_side_by_side():
    """A price changes the bill and no other figure."""
    change = compare_plans(base(SIZE)[1], changed(SIZE, "price"))
    bills = [side["usd_per_day"].value for side in (change.cost.before, change.cost.after)]

    assert bills[1] == pytest.approx(bills[0] * 3 / 2)
    assert all(each.before == each.after for each in change.performance.values())

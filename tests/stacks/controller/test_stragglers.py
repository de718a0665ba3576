"""Which units serve last, over every short sequence of looks and every state of four units."""

from dataclasses import replace
from itertools import product

import pytest

from planner.schedule.schedule import OtherDays
from stacks.controller.decide import decide, required_units
from stacks.controller.stragglers import Suspect, follow_stragglers, move_last
from tests.stacks.controller.days import HOUR, MIDNIGHT, OFF, READY, TIMETABLE, UNITS, WARM_UP_S, situation
from tests.stacks.controller.test_decide import EVENING, EVERY_STATE, MORNING, applied, on_at, ready, wanted_at

LASTS_S, LOOK_S = 20, 10
AT_NIGHT = MIDNIGHT + 2 * HOUR
SWAPPED = {"d0": "d1", "d1": "d0"}


def test_every_sequence_of_looks_is_believed_once_it_has_lasted():
    """Slow, sound or off at six looks: a unit becomes last, or is so no more, after three looks that say the same."""
    for looks in product(("slow", "sound", "off"), repeat=6):
        suspects, was_last = {}, False
        for number, look in enumerate(looks):
            slow, serving = {"d0"} if look == "slow" else set(), set() if look == "off" else {"d0"}
            suspects = follow_stragglers(suspects, slow, serving, number * LOOK_S, LASTS_S)
            is_last = suspects.get("d0", Suspect(False)).is_last
            if is_last != was_last:
                assert looks[number - 2 : number + 1] == ("slow" if is_last else "sound",) * 3
            elif looks[max(number - 2, 0) : number + 1] == ("sound" if is_last else "slow",) * 3:
                raise AssertionError(looks)
            was_last = is_last


def test_a_unit_that_nobody_suspects_is_not_kept():
    """The status has only what the next look needs."""
    run_once = follow_stragglers({}, {"d0"}, {"d0"}, 0, LASTS_S)

    assert run_once == {"d0": Suspect(False, 0)}
    assert follow_stragglers(run_once, set(), {"d0"}, LOOK_S, LASTS_S) == {}


@pytest.mark.parametrize("now", [MORNING - WARM_UP_S, MORNING, EVENING, AT_NIGHT])
def test_the_others_take_its_place_and_nobody_misses_it(now):
    """In every state: the day is as without, with the slow unit in the last one's place, capacity included."""
    on = {SWAPPED.get(name, name) for name in on_at(now)}
    wanted = {SWAPPED.get(name, name) for name in wanted_at(now)}
    for states in EVERY_STATE:
        seen = move_last(situation(states), {"d0"})
        scales = decide(seen, now).scales

        started, drained = ({each.unit for each in scales if each.is_on is is_on} for is_on in (True, False))
        assert started == {unit.name for unit in seen.units if unit.name in on and unit.replicas == 0}
        assert drained.isdisjoint(on)
        if drained:
            after = ready(applied(seen.units, scales))
            assert all(after[phase] >= sum(UNITS[name] == phase for name in wanted) for phase in ("prefill", "decode"))


def test_the_slow_unit_leaves_the_peak_first():
    """In the evening it goes, and the other one of its phase stays; at night another one is started for it."""
    evening = decide(move_last(situation((READY,) * 4), {"d0"}), EVENING)
    night = decide(move_last(situation((READY, OFF, READY, OFF)), {"d0"}), AT_NIGHT)
    replaced = decide(move_last(situation((READY, OFF, READY, READY)), {"d0"}), AT_NIGHT)

    assert {each.unit for each in evening.scales} == {"d0", "p1"}
    assert [(each.unit, each.is_on) for each in night.scales] == [("d1", True)]
    assert [(each.unit, each.is_on) for each in replaced.scales] == [("d0", False)]


def test_weekdays_and_dates_have_the_same_order():
    """On Tuesdays, such as this one, it is always night; a state of any day may be the one with most nodes."""
    by_night = TIMETABLE.steps[1:]
    weekly = replace(TIMETABLE, other_days=(OtherDays(("tuesday",), by_night),))
    seen = move_last(replace(situation((READY,) * 4), timetable=weekly), {"d0"})
    small = replace(weekly, steps=by_night, other_days=(OtherDays(("monday",), TIMETABLE.steps),))
    asking = replace(situation((READY, OFF, READY, OFF)), timetable=small, floors={"decode": 2})

    assert required_units(seen, MIDNIGHT + 12 * HOUR) == {"p0", "d1"}
    assert decide(asking, MIDNIGHT + 12 * HOUR).wanted == ("p0", "d0", "d1")


def test_the_order_is_the_plans_where_nobody_is_slow_or_all_are():
    """Nothing changes then."""
    seen = situation((READY,) * 4)

    assert move_last(seen, ()) == seen == move_last(seen, {"d0", "d1"})
    assert required_units(move_last(seen, {"d0", "d1"}), AT_NIGHT) == {"p0", "d0"}


def test_a_clock_that_is_set_back_delays_a_suspect_by_no_more_than_ever():
    """What was seen in the clock's future counts from the step on."""
    suspects = follow_stragglers({"d0": Suspect(False, 3600.0)}, {"d0"}, {"d0"}, 0, LASTS_S)

    assert follow_stragglers(suspects, {"d0"}, {"d0"}, LASTS_S, LASTS_S) == {"d0": Suspect(True)}

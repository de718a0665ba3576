"""What the controller does, over every state that four units can be in, at every time that matters."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from stacks.controller.decide import decide
from stacks.controller.situation import Force, LiveUnit, Orders
from tests.stacks.controller.days import (
    ABSENT,
    DAY,
    DRAIN_S,
    HOUR,
    MIDNIGHT,
    NIGHT,
    OFF,
    READY,
    STARTING,
    UNITS,
    WARM_UP_S,
    situation,
)

MORNING, EVENING = MIDNIGHT + 6 * HOUR, MIDNIGHT + 22 * HOUR
TIMES = [
    each + shift for each in (MORNING - WARM_UP_S, MORNING, EVENING, EVENING + DRAIN_S) for shift in (-1, -0.5, 0, 1)
]
ROUND_S = 300  # longer than real ones, for speed; a round that is cut short starts one of two units a round late
EVERY_STATE = list(itertools.product((OFF, STARTING, READY, ABSENT), repeat=len(UNITS)))


def on_at(now):
    """The units that have to run, by hand."""
    return set(DAY if MORNING - WARM_UP_S <= now < EVENING else NIGHT)


def wanted_at(now):
    """The units that have to serve, by hand."""
    return set(DAY if MORNING <= now < EVENING else NIGHT)


def ready(units):
    return Counter(unit.phase for unit in units if unit.replicas and unit.is_ready)


def applied(units, scales):
    """The units just after these changes: one that starts is not ready, one that drains takes nothing new."""
    changes = {each.unit: each.is_on for each in scales}
    return tuple(
        replace(unit, replicas=int(changes[unit.name]), is_ready=False) if unit.name in changes else unit
        for unit in units
    )


@pytest.mark.parametrize("now", TIMES)
def test_units_start_in_time_and_go_only_when_nobody_misses_them(now):
    """In every state: what has to run is started, what has to run stays, and every phase keeps what is wanted."""
    for states in EVERY_STATE:
        seen = situation(states)
        scales = decide(seen, now).scales

        started, drained = ({each.unit for each in scales if each.is_on is is_on} for is_on in (True, False))
        assert started == {unit.name for unit in seen.units if unit.name in on_at(now) and unit.replicas == 0}
        assert drained.isdisjoint(on_at(now))
        assert drained <= {unit.name for unit in seen.units if unit.replicas}
        if drained:
            wanted = Counter(UNITS[name] for name in wanted_at(now))
            assert ready(applied(seen.units, scales)) >= wanted


@pytest.mark.parametrize("now", TIMES)
def test_what_may_go_goes_at_once(now):
    """Where all that is wanted is ready, every other unit drains, and nothing is left to do after it."""
    for states in EVERY_STATE:
        seen = situation(states)
        if not all(unit.replicas and unit.is_ready for unit in seen.units if unit.name in wanted_at(now)):
            continue
        after = replace(seen, units=applied(seen.units, decide(seen, now).scales))

        assert {unit.name for unit in after.units if unit.replicas} <= on_at(now)
        assert decide(after, now).scales == ()


@pytest.mark.parametrize("kill_after", range(4))
def test_a_controller_that_is_killed_between_two_changes_leaves_the_same_day(kill_after):
    """Each round ends after some changes; capacity is never under what is wanted, and the nodes follow the day."""
    units = tuple(LiveUnit(name, phase, 1, is_ready=True) for name, phase in UNITS.items())
    started = {}
    for now in range(MIDNIGHT, MIDNIGHT + 30 * HOUR, ROUND_S):
        units = tuple(
            replace(unit, is_ready=bool(unit.replicas) and now - started.get(unit.name, 0) >= WARM_UP_S - ROUND_S)
            for unit in units
        )
        scales = decide(replace(situation((READY,) * 4), units=units), now).scales[:kill_after]
        started |= {each.unit: now for each in scales if each.is_on}
        units = applied(units, scales)
        if kill_after:
            day_s = (now - MIDNIGHT) % (24 * HOUR) + MIDNIGHT
            assert ready(units) >= Counter(UNITS[name] for name in wanted_at(day_s))
            running = {unit.name for unit in units if unit.replicas}
            if not any(abs(day_s - edge) < 1500 for edge in (MORNING - WARM_UP_S, EVENING, MIDNIGHT)):
                assert running == on_at(day_s)


def test_nothing_changes_while_a_person_holds_it():
    """Until the time that was given, and not after it."""
    orders = Orders(hold_until=EVENING + 60)

    held = decide(situation((READY,) * 4, orders), EVENING + 59)
    after = decide(situation((READY,) * 4, orders), EVENING + 60)

    assert held.is_held
    assert held.scales == ()
    assert {each.unit for each in after.scales} == {"p1", "d1"}


@pytest.mark.parametrize("force", [None, Force("06:00", MORNING + HOUR)])
def test_units_of_the_morning_warm_up_before_a_hold_ends(force):
    """As before any other change of the day, or of a forced state; and nothing drains."""
    night = situation((READY, OFF, READY, OFF), Orders(hold_until=MORNING, force=force))

    assert not decide(night, MORNING - WARM_UP_S - 1).scales
    found = decide(night, MORNING - WARM_UP_S)
    assert found.is_held
    assert [(each.unit, each.is_on) for each in found.scales] == [("p1", True), ("d1", True)]


def test_units_start_and_none_drains_while_nobody_knows_until_when_to_hold():
    """In every state, around each change: the morning has its units, and what the hold was for is not disturbed."""
    unread = Orders(unreadable=("until no time",), may_drain=False)
    for now, states in itertools.product(TIMES[::4], EVERY_STATE):
        found, followed = decide(situation(states, unread), now), decide(situation(states), now)

        assert found.scales == tuple(each for each in followed.scales if each.is_on)
        assert found.reason.startswith("until no time")
        assert "stays until" not in found.reason


def test_a_forced_state_is_the_days_until_it_ends():
    """By night the day's units start at once; when the order ends soon, those of the state after it warm up."""
    night = MIDNIGHT + 2 * HOUR
    forced = decide(situation((READY, OFF, READY, OFF), Orders(force=Force("06:00", night + HOUR))), night)
    kept = decide(situation((READY,) * 4, Orders(force=Force("22:00", MORNING + HOUR))), MORNING + HOUR - 60)

    assert forced.is_forced
    assert forced.state == "06:00"
    assert {each.unit for each in forced.scales if each.is_on} == {"p1", "d1"}
    assert kept.scales == ()  # they are wanted in a minute, so they go no more


def test_a_rollout_under_a_larger_state_keeps_what_the_hour_wants():
    """The day's units stand in by night: whichever of each phase changes, as many are ready, and none is drained."""
    night = MIDNIGHT + 2 * HOUR
    orders = Orders(force=Force("06:00", night + HOUR))
    for prefill, decode in itertools.product(("p0", "p1"), ("d0", "d1")):
        seen = situation([STARTING if name in (prefill, decode) else READY for name in UNITS], orders)

        assert decide(seen, night).scales == ()
        assert ready(seen.units) >= Counter(UNITS[name] for name in wanted_at(night))

    after = decide(situation((READY,) * 4), night)
    assert {each.unit for each in after.scales} == {"p1", "d1"}


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ((READY, OFF, READY, OFF), "as planned"),
        ((READY, READY, STARTING, READY), "d1 stays until d0 are ready"),
        ((STARTING, READY, STARTING, OFF), "0 of 1 decode units are ready; p1 stays until p0 and d0 are ready"),
        ((READY, OFF, ABSENT, OFF), "0 of 1 decode units are ready; d0 not created"),
    ],
)
def test_a_person_is_told_why(states, why):
    """By night, with what is missing and what is kept for it."""
    assert decide(situation(states), MIDNIGHT).reason == why


def test_a_unit_that_somebody_scaled_up_is_one_group_again():
    """It goes on as one by day; by night it goes; while a person holds everything it stays."""
    states = (READY, READY, READY, (5, False))
    by_day = decide(situation(states), MIDNIGHT + 12 * HOUR).scales
    by_night = decide(situation(states), MIDNIGHT).scales
    held = decide(situation(states, Orders(hold_until=MIDNIGHT + 60)), MIDNIGHT).scales

    assert [(each.unit, each.is_on, each.reason) for each in by_day] == [
        ("d1", True, "it was scaled to 5 groups, and a unit is one")
    ]
    assert ("d1", False) in [(each.unit, each.is_on) for each in by_night]
    assert held == ()

"""Turns: units take a new template one after the other, over every state that four units can be in."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stacks.controller.decide import decide
from stacks.controller.situation import Force, LiveUnit, Orders, Situation
from tests.stacks.controller.days import ABSENT, HOUR, MIDNIGHT, NIGHT, OFF, READY, STARTING, TIMETABLE, UNITS

NOON, LATE = MIDNIGHT + 12 * HOUR, MIDNIGHT + 23 * HOUR  # both units of each phase are wanted; one is
OLD, DOWN, LEAVING = (1, True, True), (1, False, True), (0, False, True)  # outdated: ready, not ready, and off
STATES = (OFF, STARTING, READY, ABSENT, OLD, DOWN, LEAVING)
BAD = "bad"


def seen(states, *, orders=None, **more):
    """One look, with each unit's replicas, readiness and whether it is outdated, in the order of `UNITS`."""
    units = tuple(
        LiveUnit(name, phase, state[0], is_ready=state[1], is_outdated=state[2:] == (True,))
        for (name, phase), state in zip(UNITS.items(), states, strict=True)
    )
    return Situation(TIMETABLE, units, orders or Orders(), **more)


def turns(states, now=NOON, **more):
    """Whose turn begins."""
    return set(decide(seen(states, **more), now).turns.begin)


@pytest.mark.parametrize(("now", "may_lack_one"), [*itertools.product((NOON, LATE), (True, False))])
def test_a_turn_costs_no_more_than_it_may_in_any_state(now, may_lack_one):
    """One serving unit of a phase at most, none while another one changes, and by `with_room` none that is missed."""
    wanted = Counter(UNITS[name] for name in (UNITS if now == NOON else NIGHT))
    for states in itertools.product(STATES, repeat=len(UNITS)):
        look = seen(states, may_lack_one=may_lack_one)
        decision = decide(look, now)
        begin = [unit for unit in look.units if unit.name in decision.turns.begin]
        if not begin:
            continue

        lost = Counter(unit.phase for unit in begin if unit.is_ready)
        ready = Counter(unit.phase for unit in look.units if unit.is_on and unit.is_ready)
        assert {each.unit for each in decision.scales} == {unit.name for unit in begin}
        assert all(unit.is_on and unit.is_outdated for unit in begin)
        assert all(unit.is_ready for unit in look.units if unit.is_on and not unit.is_outdated)
        assert max(lost.values(), default=0) <= 1
        assert all(may_lack_one or ready[phase] - 1 >= wanted[phase] for phase in lost)


@dataclass(frozen=True)
class Running:
    """A unit as a cluster has it: the template of its pods, and of its object."""

    replicas: int
    template: str
    is_ready: bool = False
    is_gone: bool = False  # it is off, and its pods are gone

    def as_seen(self, newest):
        """What the controller reads of it."""
        old = self.template != newest
        return (self.replicas, self.is_ready, True) if old else (self.replicas, self.is_ready)


def advance(unit, newest):
    """The unit a while later: it has drained, and then has the newest template; or it is ready, unless that is bad."""
    if not unit.replicas:
        return Running(0, newest, is_gone=True)
    return replace(unit, is_ready=unit.template != BAD)


def play(units, newest, now, random, *, may_lack_one=True, rounds=60):
    """Rounds of a controller that is killed between any two acts, over units of which each may take its time.

    Yield the units after each round.
    """
    for _ in range(rounds):
        look = seen([unit.as_seen(newest) for unit in units.values()], may_lack_one=may_lack_one)
        scales = decide(look, now).scales
        for each in scales[: random.randint(0, len(scales))]:
            units = units | {each.unit: Running(int(each.is_on), units[each.unit].template)}
        late = [name for name in units if random.randint(0, 1)]
        units = {name: unit if name in late else advance(unit, newest) for name, unit in units.items()}
        yield units


def serving(units):
    return Counter(UNITS[name] for name, unit in units.items() if unit.replicas and unit.is_ready)


def running(template, names=UNITS):
    """All units of a template; those of `names` are ready, and the others are off."""
    return {name: Running(int(name in names), template, name in names, name not in names) for name in UNITS}


CASES = st.tuples(st.sampled_from([(NOON, UNITS), (LATE, NIGHT)]), st.booleans(), st.integers(0, 2**32).map(Random))


@settings(max_examples=20, deadline=None)
@given(CASES)
def test_every_unit_ends_with_the_new_template_whenever_the_controller_is_killed(case):
    """Each phase lacks one unit of those wanted at most; none where another one can stand in."""
    (now, on), _, random = case
    wanted = Counter(UNITS[name] for name in on)
    spare = 0 if now == LATE else 1
    for units in play(running("old", on), "new", now, random, rounds=120):
        assert all(serving(units)[phase] >= number - spare for phase, number in wanted.items())
    assert {name for name, unit in units.items() if unit.replicas and unit.is_ready} == {*on}
    assert {unit.template for unit in units.values()} == {"new"}


@settings(max_examples=20, deadline=None)
@given(CASES)
def test_a_bad_template_stops_after_one_unit_of_a_phase_and_the_former_one_heals_it(case):
    """All other units keep serving with their pods, however long it lasts."""
    (now, on), may_lack_one, random = case
    wanted = Counter(UNITS[name] for name in on)
    lacking = int(may_lack_one and now == NOON)
    units = running("old", on)
    for newest in (BAD, "old"):
        for after in play(units, newest, now, random, may_lack_one=may_lack_one, rounds=120):
            assert all(serving(after)[phase] >= number - lacking for phase, number in wanted.items())
        units = after
    assert {name for name, unit in units.items() if unit.replicas and unit.is_ready} == {*on}
    assert {units[name].template for name in on} == {"old"}


def test_a_turn_waits_for_a_state_with_room_where_the_spec_says_so():
    """By day all units are wanted; by night the second ones stand in first, and nobody is missed."""
    assert turns((OLD,) * 4) == {"p0", "d0"}
    assert turns((OLD,) * 4, may_lack_one=False) == set()
    night = decide(seen((OLD, OFF, OLD, OFF), may_lack_one=False), LATE)

    assert {each.unit for each in night.scales} == {"p1", "d1"}
    assert turns((OLD, STARTING, OLD, STARTING), LATE) == set()
    assert turns((OLD, READY, OLD, READY), LATE, may_lack_one=False) == {"p0", "d0"}


def test_whoever_uses_the_nodes_of_a_stand_in_has_notice_first():
    """Until then nothing changes, though a phase may lack a unit: there will be one that stands in."""
    look = seen((OLD, OFF, OLD, OFF), has_given_notice=False)

    assert decide(look, LATE).scales == ()
    assert "whoever uses free nodes gets notice first" in decide(look, LATE).reason


def test_a_unit_that_failed_has_the_first_turn():
    """It serves nobody, and the template before it is what the others have."""
    assert turns((READY, DOWN, READY, READY)) == {"p1"}
    assert turns((OLD, DOWN, OLD, OLD)) == {"p1", "d0"}


def test_units_that_nobody_sends_requests_go_together_once_one_serves_with_the_new_template():
    """As after a change of the KV format, when the gateway refuses the old ones; before that, one goes first."""
    assert turns((DOWN, DOWN, OLD, OLD)) == {"p0", "d0"}

    units = {f"p{index}": "prefill" for index in range(4)} | {"d0": "decode"}
    states = {"p0": READY} | dict.fromkeys(("p1", "p2", "p3"), DOWN) | {"d0": READY}
    look = replace(
        seen((READY,) * 4),
        units=tuple(
            LiveUnit(name, phase, 1, is_ready=states[name][1], is_outdated=states[name] == DOWN)
            for name, phase in units.items()
        ),
    )
    step = replace(TIMETABLE.steps[0], num_units={"prefill": 4, "decode": 1}, units=tuple(units), num_nodes=5)
    look = replace(look, timetable=replace(TIMETABLE, steps=(step,)))

    assert set(decide(look, NOON).turns.begin) == {"p1", "p2", "p3"}


@pytest.mark.parametrize(
    "orders", [Orders(hold_until=NOON + 1), Orders(may_drain=False), Orders(force=Force("22:00", NOON + HOUR))]
)
def test_a_hold_stops_turns_and_a_forced_state_does_not(orders):
    """A forced state wants fewer units here, so one of each phase is left over and drains first."""
    decision = decide(seen((OLD,) * 4, orders=orders), NOON)

    assert decision.turns.begin == ()
    assert decision.turns.outdated == ("p0", "p1", "d0", "d1")
    assert [each.unit for each in decision.scales] == (["d1", "p1"] if orders.force else [])


def placed(**units):
    """One look by day: unit -> (state, its nodes, the nodes that its pods are on)."""
    look = seen((READY,) * 4)
    return replace(
        look,
        units=tuple(
            replace(
                unit,
                replicas=units[unit.name][0][0],
                is_ready=units[unit.name][0][1],
                is_outdated=units[unit.name][0][2:] == (True,),
                nodes=(units[unit.name][1],),
                holds=frozenset(units[unit.name][2]),
            )
            if unit.name in units
            else unit
            for unit in look.units
        ),
    )


def test_a_unit_waits_for_the_one_that_has_pods_on_its_new_nodes():
    """The other goes first, though it comes later in the plan; and it starts only once those nodes are free."""
    chain = placed(p0=(OLD, "b", "a"), p1=(OLD, "c", "b"))
    new = placed(p0=(STARTING, "b", ""), p1=(OLD, "c", "b"))
    leaving = placed(p0=(OFF, "b", ""), p1=((0, False), "c", "b"))

    assert decide(chain, NOON).turns.begin == ("p1",)
    assert decide(new, NOON).turns.begin == ("p1",)
    assert [each.unit for each in decide(leaving, NOON).scales] == ["p1"]


def test_units_that_wait_for_each_other_go_together():
    """Also those of two phases, before one that waits for them; none goes while one that stays is on their nodes."""
    cycle = placed(p0=(OLD, "c", "d"), p1=(OLD, "b", "c"), d0=(OLD, "c", "b"))
    stuck = placed(p0=(OLD, "b", "a"), d0=(READY, "a", "b"))

    assert set(decide(cycle, NOON).turns.begin) == {"p1", "d0"}
    assert decide(stuck, NOON).turns.begin == ()


def estranged(look):
    """The same, where outdated units have another KV format, and the gateway still serves it."""
    units = tuple(replace(unit, has_other_kv_format=unit.is_outdated) for unit in look.units)
    return replace(look, units=units, gateway="former")


def test_after_the_first_pair_of_another_kv_format_the_others_wait_for_its_gateway_and_go_together():
    """The old gateway serves the second units until then."""
    pair = estranged(seen((READY, OLD, READY, OLD)))
    waiting, over = decide(pair, NOON).turns, decide(replace(pair, gateway="newest"), NOON).turns

    assert decide(estranged(seen((OLD,) * 4)), NOON).turns.begin == ("p0", "d0")
    assert (waiting.begin, waiting.reason) == ((), "p1, d1 wait: the gateway for their new KV format is not ready yet")
    assert over.begin == ("p1", "d1")


def test_a_stand_in_of_another_kv_format_waits_for_one_of_each_phase():
    """It serves nobody alone: by a night with room for a prefill unit only, decode lacks one unit or all wait."""
    night = replace(TIMETABLE.steps[1], num_units={"prefill": 1, "decode": 2}, units=("p0", "d0", "d1"), num_nodes=3)
    day = replace(TIMETABLE, steps=(TIMETABLE.steps[0], night))
    look = replace(estranged(seen((OLD, OFF, OLD, OLD))), timetable=day)
    stands_in = replace(estranged(seen((OLD, READY, OLD, OLD))), timetable=day)

    assert [each.unit for each in decide(look, LATE).scales] == ["p1"]
    assert decide(stands_in, LATE).turns.begin == ("d0",)
    assert decide(replace(look, may_lack_one=False), LATE).scales == ()


@settings(max_examples=20, deadline=None)
@given(CASES)
def test_one_unit_of_each_phase_serves_all_the_while_the_kv_format_changes(case):
    """Whenever the controller is killed, and however long units and the new gateway take."""
    (now, on), may_lack_one, random = case
    if now == NOON:
        may_lack_one = True  # there is never room at noon
    units, gateway = running("old", on), "former"
    old_ones_end = random.randint(0, 1)  # those of another version wait for a gateway of theirs, and stay ready
    for _ in range(120):
        look = seen([unit.as_seen("new") for unit in units.values()], may_lack_one=may_lack_one)
        scales = decide(replace(estranged(look), gateway=gateway), now).scales
        for each in scales[: random.randint(0, len(scales))]:
            units = units | {each.unit: Running(int(each.is_on), units[each.unit].template)}
        late = [name for name in units if random.randint(0, 1)]
        units = {name: unit if name in late else advance(unit, "new") for name, unit in units.items()}
        if serving(of_template(units, "new")).keys() == {"prefill", "decode"} and random.randint(0, 1):
            gateway = "newest"
        if gateway == "newest" and old_ones_end:
            units = {
                name: replace(unit, is_ready=unit.is_ready and unit.template == "new") for name, unit in units.items()
            }
        serves = of_template(units, "new" if gateway == "newest" else "old")
        assert serving(serves).keys() == {"prefill", "decode"}

    assert serving(units) == Counter(UNITS[name] for name in on)
    assert {unit.template for unit in units.values()} == {"new"}


def of_template(units, template):
    return {name: unit for name, unit in units.items() if unit.template == template}


def test_units_that_exchange_no_kv_with_new_ones_go_all_at_once():
    """As those of another engine with another image; nobody stands in, and where a phase may lack none, none goes."""
    look = seen((OLD, OFF, OLD, OFF))
    look = replace(estranged(look), gateway="blind")
    waiting = decide(replace(look, may_lack_one=False), LATE)

    assert set(decide(look, LATE).turns.begin) == {"p0", "d0"}
    assert {each.unit for each in decide(look, LATE).scales} == {"p0", "d0"}
    assert (waiting.scales, waiting.turns.outdated) == ((), ("p0", "d0"))


def test_a_person_is_told_what_turns_wait_for():
    """The reason names the unit, and says if it is over its time."""
    look = seen((OLD, STARTING, READY, OLD))
    late = replace(look, units=tuple(replace(unit, is_late=unit.name == "p1") for unit in look.units))

    assert decide(look, NOON).turns.reason == "p0, d1 wait: p1 is not ready yet with its newest template"
    assert not decide(look, NOON).turns.is_stopped
    assert decide(late, NOON).turns.reason == "p0, d1 wait: p1 has not become ready in time with its newest template"
    assert decide(late, NOON).turns.is_stopped
    assert decide(seen((OLD, LEAVING, READY, READY)), NOON).turns.reason == "p0 waits: p1 has to start"
    assert decide(seen((OLD, READY, READY, READY)), NOON).turns.reason == "p0 take their new template"

"""Which nodes are free, over every state of four units at every time that matters."""

from dataclasses import replace

import pytest

from stacks.controller.decide import decide, required_units
from stacks.controller.lend import Marks, decide_marks, lending_events
from stacks.controller.situation import Force, Orders
from tests.stacks.controller.days import HOUR, MIDNIGHT, TIMETABLE, WARM_UP_S, situation
from tests.stacks.controller.test_decide import EVENING, EVERY_STATE, MORNING, TIMES

NOTICE_S = 600
NOTHING_ON = (replace(TIMETABLE.steps[0], num_units={"prefill": 0, "decode": 0}, units=()),)
NOTICED = MORNING - WARM_UP_S - NOTICE_S


def lending(states, orders=None, *, ending=()):
    """One look, where each unit has two nodes; those in `ending` still have pods."""
    seen = situation(states, orders)
    units = tuple(
        replace(unit, has_pods=unit.is_on or unit.name in ending, nodes=(f"{unit.name}-a", f"{unit.name}-b"))
        for unit in seen.units
    )
    return replace(seen, timetable=replace(TIMETABLE, notice_s=NOTICE_S), units=units, lends_nodes=True)


@pytest.mark.parametrize("now", [*TIMES, NOTICED - 1, NOTICED, NOTICED + 1])
def test_no_node_is_free_that_a_unit_has_or_will_have_soon(now):
    """In every state: a free node's unit is off, has no pods, and is not wanted for as long as the notice is."""
    for states in EVERY_STATE:
        seen = lending(states, ending=("p1",))
        marks = decide_marks(seen, now)
        for unit in seen.units:
            for node in unit.nodes:
                mark = marks.lookup(node)
                is_wanted = any(unit.name in required_units(seen, now + ahead) for ahead in (0, NOTICE_S))
                is_idle = unit.replicas == 0 and not unit.has_pods and not is_wanted
                assert (mark == "free") == is_idle
                if unit.is_on:
                    assert mark == (None if unit.is_ready else "reclaimed")


def test_nodes_are_to_be_left_a_notice_before_their_unit_starts():
    """At night they are free; from the notice on they are not; the unit starts when the notice is over."""
    night = lending(((1, True), (0, False)) * 2)

    assert decide_marks(night, NOTICED - 1) == Marks(free=("p1-a", "p1-b", "d1-a", "d1-b"))
    assert decide_marks(night, NOTICED) == Marks(reclaimed=("p1-a", "p1-b", "d1-a", "d1-b"))
    assert decide(night, NOTICED + NOTICE_S - 1).scales == ()
    assert {each.unit for each in decide(night, NOTICED + NOTICE_S).scales} == {"p1", "d1"}


def test_nodes_of_a_unit_that_drains_are_not_free_yet():
    """Its answers are still computed there."""
    draining = lending(((1, True), (0, False)) * 2, ending=("d1",))

    assert decide_marks(draining, EVENING + 1) == Marks(free=("p1-a", "p1-b"))


def test_a_forced_state_takes_its_nodes_at_once():
    """A person who wants the units now does not wait for the notice."""
    forced = lending(((1, True), (0, False)) * 2, Orders(force=Force("06:00", MIDNIGHT + 3 * HOUR)))

    assert decide_marks(forced, MIDNIGHT + 2 * HOUR).reclaimed == ("p1-a", "p1-b", "d1-a", "d1-b")


def test_nothing_is_marked_where_nodes_are_not_lent():
    """The spec did not ask for it."""
    seen = situation(((1, True), (0, False)) * 2)

    assert decide_marks(seen, MIDNIGHT) == Marks()


def test_each_change_is_told_once_for_a_unit():
    """Free, to be left, and taken: of the last the unit's own start speaks."""
    seen = lending(((1, True),) * 4)
    free, reclaimed, taken = Marks(free=("d1-a", "d1-b")), Marks(reclaimed=("d1-a", "d1-b")), Marks()

    assert list(lending_events(seen, taken, free)) == [("Freed", "the 2 nodes of d1 are free")]
    assert list(lending_events(seen, free, reclaimed)) == [("Reclaimed", "the 2 nodes of d1 are to be left")]
    assert list(lending_events(seen, reclaimed, taken)) == []
    assert list(lending_events(seen, free, free)) == []


def test_a_unit_that_nobody_has_made_lends_nothing():
    """Its nodes may be anybody's."""
    absent = lending(((None, False),) * 4)

    assert decide_marks(absent, MIDNIGHT) == Marks()


@pytest.mark.parametrize(("other", "is_free"), [((1, True), False), ((0, False), True), ((None, False), False)])
def test_a_node_of_two_units_is_free_only_if_it_is_for_both(other, is_free):
    """One may serve on it while the other is off."""
    seen = lending(((1, True), (0, False), other, (0, False)))
    *others, d0, d1 = seen.units
    shared = replace(seen, units=(*others, replace(d0, nodes=("both",)), replace(d1, nodes=("both", "d1-b"))))

    marks = decide_marks(replace(shared, timetable=replace(TIMETABLE, steps=NOTHING_ON)), MIDNIGHT)

    assert ("both" in marks.free) == is_free
    assert marks.lookup("d1-b") == "free"


def test_marks_that_could_not_be_made_are_as_before():
    """The others are as they have to be."""
    before, after = Marks(free=("a", "b"), reclaimed=("c",)), Marks(free=("c",), reclaimed=("a", "b"))

    assert after.keep_previous({"b", "c"}, before) == Marks(free=("b",), reclaimed=("a", "c"))
    assert after.keep_previous((), before) == after


def test_nodes_of_which_some_could_not_be_marked_are_not_told_as_one():
    """It would be said of all nodes of the unit."""
    assert list(lending_events(lending(((1, True),) * 4), Marks(), Marks(free=("d1-a",)))) == []

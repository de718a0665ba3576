"""The queue is fair by work, first come first served for one caller, and bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.gateway.tenants.fair_queue import FairQueue, cost

COSTS = st.integers(1, 50)
CALLERS = st.sampled_from("abcd")


def serve(queue):
    """Return the turn that is served next."""
    turn = queue.next_turn()
    queue.serve(turn)
    return turn


def fill(queue, arrivals):
    """Add one turn for each (caller, cost)."""
    return [queue.join(caller, asked) for caller, asked in arrivals]


@given(st.lists(COSTS, min_size=1))
def test_one_caller_alone_is_served_in_order(costs):
    """One caller's requests are served in order, whatever they cost."""
    queue = FairQueue()
    turns = fill(queue, [("a", asked) for asked in costs])

    assert [serve(queue) for _ in costs] == turns
    assert queue.next_turn() is None


@given(st.lists(st.tuples(CALLERS, COSTS)), st.lists(COSTS, min_size=1))
def test_a_newcomers_first_request_waits_for_one_of_each_other_caller_at_most(before, costs):
    """A new caller's first request waits for one request of each other caller at most."""
    queue = FairQueue()
    fill(queue, before)
    for _ in range(len(before) // 2):
        serve(queue)
    others = queue.num_callers("new") - 1
    first, *_ = fill(queue, [("new", asked) for asked in costs])
    served = [serve(queue) for _ in range(others + 1)]

    assert first in served


@given(st.lists(st.tuples(CALLERS, COSTS), min_size=1), st.data())
def test_callers_that_always_wait_are_served_equal_work(arrivals, data):
    """The work of two callers that always wait differs by one largest request of each at most."""
    queue = FairQueue()
    fill(queue, [(caller, asked) for caller, asked in arrivals for _ in range(20)])
    names, largest = {caller for caller, _ in arrivals}, {}
    for caller, asked in arrivals:
        largest[caller] = max(largest.get(caller, 0), asked)
    for _ in range(data.draw(st.integers(0, 9))):
        serve(queue)
    work = dict.fromkeys(names, 0)
    while queue.num_callers("nobody") - 1 == len(names):
        turn = serve(queue)
        work[turn.caller.name] += turn.cost
        for one in names:
            for other in names - {one}:
                assert work[one] - work[other] <= largest[one] + largest[other]


@given(st.lists(st.tuples(st.sampled_from(["join", "serve", "leave", "end"]), CALLERS, COSTS)))
def test_a_caller_that_waits_is_served(steps):
    """After any history the queue is served to its end."""
    queue, waiting, served = FairQueue(), [], []
    for step, caller, asked in steps:
        if step == "join":
            waiting.append(queue.join(caller, asked))
        elif waiting and step == "serve":
            served.append(serve(queue))
            waiting.remove(served[-1])
        elif waiting and step == "leave":
            queue.end(waiting.pop(), 0)
        elif served:
            queue.end(served.pop(), asked)
        assert len(queue) == len(waiting)
    rest = [serve(queue) for _ in waiting]

    assert sorted(rest, key=id) == sorted(waiting, key=id)


def test_a_caller_pays_for_what_its_answers_were_in_the_end():
    """A caller whose answers are longer than expected is served less often."""
    queue = FairQueue()
    fill(queue, [("short", 10), ("long", 10)] * 40)
    served = []
    for _ in range(30):
        turn = serve(queue)
        queue.end(turn, 10 if turn.caller.name == "short" else 50)
        served.append(turn.caller.name)

    assert served.count("short") == pytest.approx(25, abs=1)


def test_an_idle_caller_saves_nothing():
    """An idle caller does not save up turns."""
    queue = FairQueue()
    fill(queue, [("busy", 10)] * 100)
    for _ in range(50):
        serve(queue)
    fill(queue, [("idle", 10)] * 100)

    assert sorted(serve(queue).caller.name for _ in range(10)) == ["busy"] * 5 + ["idle"] * 5


def test_work_is_not_forgotten_while_others_wait():
    """A caller of one large request after another gets no more than its share."""
    queue = FairQueue()
    fill(queue, [("small", 1)] * 1000)
    queue.join("large", 100)
    served = []
    for _ in range(300):
        served.append(serve(queue).caller.name)
        if served[-1] == "large":
            queue.join("large", 100)

    assert served.count("large") == 3


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.booleans())), st.integers(0, 20))
def test_the_line_has_never_more_than_twice_its_places(calls, num_places):
    """The queue has at most twice its places, and a call enters with all its requests or none."""
    queue = FairQueue()
    for caller, num_requests, is_served in calls:
        if num_requests <= queue.room(str(caller), num_places):
            fill(queue, [(str(caller), 1)] * num_requests)
        if is_served and len(queue):
            serve(queue)
        assert len(queue) <= 2 * num_places


@pytest.mark.parametrize("num_places", [1, 7, 64])
def test_one_caller_alone_has_all_places(num_places):
    """One caller alone may have all places, and no more."""
    queue = FairQueue()

    assert queue.room("a", num_places) == num_places
    fill(queue, [("a", 1)] * num_places)
    assert queue.room("a", num_places) == 0


def test_a_full_line_has_room_for_its_share_of_somebody_else():
    """A caller that fills the queue keeps no other caller out."""
    queue = FairQueue()
    fill(queue, [("hog", 1)] * 12)

    assert queue.room("hog", 12) == 0
    assert queue.room("other", 12) == 6
    fill(queue, [("other", 1)] * 6)
    assert queue.room("other", 12) == 0
    assert queue.room("third", 12) == 4


def test_callers_are_forgotten():
    """A queue that is empty keeps nothing of its callers."""
    queue = FairQueue()
    queue.join("always", 1)
    for number in range(1000):
        queue.join(str(number), 5)
        queue.join("always", 1)
        for turn in (serve(queue), serve(queue)):
            queue.end(turn, turn.cost)

    assert len(queue._callers) < 10
    while len(queue):
        turn = serve(queue)
        queue.end(turn, turn.cost)
    assert not queue._callers


def test_whoever_is_being_served_comes_after_somebody_new():
    """A caller that is being served comes after a new one."""
    queue = FairQueue()
    fill(queue, [("hog", 1)])
    serve(queue)
    fill(queue, [("hog", 1), ("new", 1)])

    assert serve(queue).caller.name == "new"


def test_a_generated_token_costs_two_of_a_prompt():
    """A generated token costs as much as two prompt tokens."""
    assert cost(100, 10) == 120

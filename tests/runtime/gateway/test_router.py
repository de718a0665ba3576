"""The choice of ranks: the fewest requests, in turn among equals, the same whatever order the ranks are listed in."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from runtime.gateway.router import Chosen, RankLoad, choose_ranks, least_loaded, room

loads = st.lists(
    st.builds(RankLoad, st.sampled_from(["unit-0", "unit-1"]), st.integers(0, 3), st.integers(0, 3)),
    min_size=1,
    unique_by=lambda load: (load.unit, load.rank),
)


def test_each_phase_gives_its_least_loaded_rank():
    """Prefill and decode are chosen apart."""
    prefill = [RankLoad("p", 0, 2), RankLoad("p", 1, 1)]
    decode = [RankLoad("d", 0, 0), RankLoad("d", 1, 5)]

    assert choose_ranks(prefill, decode, turn=7) == Chosen(RankLoad("p", 1, 1), RankLoad("d", 0, 0))


def test_without_both_phases_nobody_is_chosen():
    """One phase alone cannot answer."""
    rank = RankLoad("u", 0, 0)

    assert choose_ranks([], [rank], turn=0) is None
    assert choose_ranks([rank], [], turn=0) is None


@given(loads, st.integers(0, 100))
def test_a_mixed_rank_is_chosen_for_both(ranks, turn):
    """Where the same ranks can do both, one does."""
    chosen = choose_ranks(ranks, ranks, turn)

    assert chosen.first == chosen.rest == least_loaded(ranks, turn)


@given(loads, st.integers(0, 100))
def test_no_rank_has_fewer_requests_than_the_chosen(ranks, turn):
    """The chosen rank has the minimum."""
    assert least_loaded(ranks, turn).num_requests == min(load.num_requests for load in ranks)


@given(loads, st.integers(0, 100))
def test_consecutive_turns_use_every_equal_rank(ranks, turn):
    """Ranks that are equally loaded are all chosen, one after another."""
    fewest = min(load.num_requests for load in ranks)
    equals = {load for load in ranks if load.num_requests == fewest}

    assert {least_loaded(ranks, turn + step) for step in range(len(equals))} == equals


@given(loads, st.integers(0, 4), st.integers(0, 9))
def test_what_there_is_room_for_fits(ranks, most, turn):
    """So many requests, each given to the least loaded, fill the ranks to their most, and one more does not fit."""
    num_before = [load.num_requests for load in ranks]
    for _ in range(room(ranks, most)):
        chosen = least_loaded(ranks, turn)
        ranks = [replace(load, num_requests=load.num_requests + (load == chosen)) for load in ranks]

    assert [load.num_requests for load in ranks] == [max(most, before) for before in num_before]
    assert room(ranks, most) == 0


@given(loads, st.integers(0, 100), st.randoms())
def test_the_order_of_the_list_does_not_matter(ranks, turn, random):
    """Ranks are compared by name and number, not by where they stand."""
    shuffled = list(ranks)
    random.shuffle(shuffled)

    assert least_loaded(shuffled, turn) == least_loaded(ranks, turn)

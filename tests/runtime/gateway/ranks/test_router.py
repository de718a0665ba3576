"""The router chooses ranks with room, and each balancer equalises its measure."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gateway.ranks.rank_load import PAIRS_PER_TOKEN
from runtime.gateway.ranks.router import (
    NO_WORK,
    HeldPrefix,
    Policy,
    RankLimits,
    RankLoad,
    RankPair,
    RequestSize,
    Work,
    choose_embedding_rank,
    choose_ranks,
    embedding_room,
    num_requests,
    pick,
    room,
)
from runtime.protocol.counting import attention_pairs

LIMITS = RankLimits(max_requests=4, kv_tokens=640, max_queued_requests=2)
SIZE = RequestSize(100, 20)

works = st.builds(Work, *(st.integers(0, most) for most in (5, 400, 9000)), st.integers(0, 10).map(lambda n: 64 * n))
limits = st.builds(RankLimits, st.integers(1, 6), st.integers(1, 10).map(lambda n: 64 * n), st.integers(0, 3))
sizes = st.builds(RequestSize, st.integers(1, 400), st.integers(0, 200))
policies = st.sampled_from(Policy)
turns = st.integers(0, 100)


def rank_lists(*phases):
    """Draw lists of ranks of these phases, each with its own name."""
    units = st.builds("{}-{}".format, st.sampled_from(phases), st.integers(0, 1))
    rank = st.builds(RankLoad, units, st.integers(0, 3), st.just("mixed"), works, limits, st.integers(0, 3))
    named = st.lists(rank, min_size=1, unique_by=lambda load: load.key)
    return named.map(lambda loads: [replace(load, phase=load.unit.partition("-")[0]) for load in loads])


def rank(phase, number=0, work=Work(0, 0, 0, 0), **limits):  # noqa: B008  # frozen
    """Return a rank with this work."""
    return RankLoad(phase, number, phase, work, replace(LIMITS, **limits))


def give_request(ranks, chosen, work):
    """Return the ranks after the chosen one got a request of this work."""
    return [
        replace(load, work=load.work + work, num_waiting=load.num_waiting + (not load.fits(work)))
        if load.key == chosen.key
        else load
        for load in ranks
    ]


def test_a_phase_is_balanced_by_what_it_does():
    """Prompts go to the least attention and tokens, answers to the least KV and the fewest requests."""
    prefill = [rank("prefill", 0, Work(1, 300, 45150, 0)), rank("prefill", 1, Work(3, 30, 155, 0))]
    decode = [rank("decode", 0, Work(1, 0, 0, 384)), rank("decode", 1, Work(2, 0, 0, 128))]

    assert choose_ranks([*prefill, *decode], SIZE, turn=7) == RankPair(prefill[1], decode[1])


def test_a_long_request_goes_by_its_kv_and_a_small_one_by_the_count():
    """A long request is placed by its KV, and a small one by the number of requests."""
    few_and_long, many_and_short = rank("decode", 0, Work(2, 0, 0, 8192)), rank("decode", 1, Work(9, 0, 0, 4096))

    assert pick([few_and_long, many_and_short], RequestSize(4000, 96), 0) == many_and_short
    assert pick([few_and_long, many_and_short], RequestSize(10, 5), 0) == few_and_long


def test_the_attention_of_a_prompt_is_quadratic_and_of_its_chunks_what_is_left():
    """Attention pairs of 4 tokens are 1 + 2 + 3 + 4, and of a chunk the rest."""
    assert attention_pairs(0, 4) == 10
    assert attention_pairs(0, 2) + attention_pairs(2, 4) == 10
    assert RequestSize(4, 60).work_at("prefill") == Work(1, 4, 10, 0)
    assert RequestSize(4, 60).work_at("mixed") == Work(1, 4, 10, 64)
    assert RequestSize(4, 61).work_at("decode") == Work(1, 0, 0, 128)


@pytest.mark.parametrize("phases", [("prefill",), ("decode",), ()])
def test_without_both_phases_nobody_is_chosen(phases):
    """One phase alone has no room."""
    ranks = [rank(phase) for phase in phases]

    assert choose_ranks(ranks, SIZE, 0) is None
    assert room(ranks, SIZE) is None
    assert embedding_room(ranks) is None


@settings(max_examples=40)
@given(rank_lists("mixed"), sizes, turns, policies)
def test_a_mixed_rank_is_chosen_for_both(ranks, size, turn, policy):
    """A request stays in a mixed unit with one rank."""
    chosen = choose_ranks(ranks, size, turn, policy)

    assert chosen is None or chosen.first is chosen.rest


@settings(max_examples=40)
@given(rank_lists("prefill", "decode", "mixed"), sizes, turns, policies)
def test_only_ranks_that_are_ready_and_have_room_are_chosen(ranks, size, turn, policy):
    """Only listed ranks of the right phases with room are chosen, and no request waits that fits elsewhere."""
    chosen = choose_ranks(ranks, size, turn, policy)
    if chosen is None:
        assert not room(ranks, size)
        return
    stay = [load for load in ranks if load.phase == chosen.rest.phase]
    work = size.work_at(chosen.rest.phase)

    assert chosen.first in ranks
    assert (chosen.first.phase, chosen.rest.phase) in {("prefill", "decode"), ("mixed", "mixed")}
    assert chosen.rest.takes(work)
    assert chosen.rest.fits(work) or not any(load.fits(work) for load in stay)


@settings(max_examples=40)
@given(rank_lists("prefill", "decode", "mixed"), sizes, turns, policies)
def test_what_there_is_room_for_is_taken_and_no_more(ranks, size, turn, policy):
    """As many requests as fit are given out, and then no rank takes another."""
    for _ in range(room(ranks, size) or 0):
        chosen = choose_ranks(ranks, size, turn, policy)
        ranks = give_request(ranks, chosen.rest, size.work_at(chosen.rest.phase))

    assert choose_ranks(ranks, size, turn, policy) is None


@settings(max_examples=40)
@given(rank_lists("decode"), st.lists(sizes, max_size=30), policies)
def test_without_a_queue_no_cache_is_ever_given_more_than_it_holds(ranks, asked, policy):
    """Without a queue no rank gets more KV or requests than it holds."""
    ranks = [replace(load, work=Work(0, 0, 0, 0), num_waiting=0) for load in ranks]
    ranks = [replace(load, limits=replace(load.limits, max_queued_requests=0)) for load in ranks]
    for turn, size in enumerate(asked):
        chosen = choose_ranks([rank("prefill"), *ranks], size, turn, policy)
        if chosen is not None:
            ranks = give_request(ranks, chosen.rest, size.work_at("decode"))

    assert all(load.limits.fit(load.work) for load in ranks)


@settings(max_examples=40)
@given(rank_lists("prefill", "decode", "mixed"), sizes, turns, policies, st.randoms())
def test_the_order_of_the_list_does_not_matter(ranks, size, turn, policy, random):
    """The choice does not depend on the order of the list."""
    shuffled = list(ranks)
    random.shuffle(shuffled)

    assert choose_ranks(shuffled, size, turn, policy) == choose_ranks(ranks, size, turn, policy)
    assert choose_embedding_rank(shuffled, size, turn, policy) == choose_embedding_rank(ranks, size, turn, policy)
    assert room(shuffled, size) == room(ranks, size)


@given(st.integers(1, 8), works, sizes, turns, policies)
def test_equal_ranks_are_chosen_in_turn(num_ranks, work, size, turn, policy):
    """As many consecutive turns as there are equal ranks choose each of them once."""
    ranks = [rank("mixed", number, work) for number in range(num_ranks)]
    chosen = {pick(ranks, size, turn + step, policy).rank for step in range(num_ranks)}

    assert chosen == set(range(num_ranks))


@given(st.integers(1, 6), st.integers(1, 5), sizes, st.sampled_from(["prefill", "decode", "mixed"]), policies)
def test_equal_ranks_get_equal_work(num_ranks, times, size, phase, policy):
    """After equal requests for all ranks, all have the same work."""
    ranks = [rank(phase, number) for number in range(num_ranks)]
    for turn in range(num_ranks * times):
        ranks = give_request(ranks, pick(ranks, size, turn, policy), size.work_at(phase))

    assert {load.work.num_requests for load in ranks} == {times}


def test_the_balanced_choice_keeps_the_spread_least_in_every_small_state():
    """The spread of KV and requests by the means with the request, at 3 ranks with 0 to 3 requests of 3 sizes."""
    sizes = [RequestSize(tokens, tokens // 2) for tokens in (20, 100, 300)]
    small, medium, large = (size.work_at("decode") for size in sizes)
    states = [NO_WORK, small, medium, large, small + small, small + large, large + large + small]
    for held, size in product(product(states, repeat=3), sizes):
        ranks = [rank("decode", number, each) for number, each in enumerate(held)]
        work = size.work_at("decode")
        means = {
            name: (sum(getattr(each, name) for each in held) + getattr(work, name)) / 3
            for name in ("num_requests", "kv_tokens")
        }

        def spread_after(chosen, held=held, work=work, means=means):
            after = [each + work if number == chosen else each for number, each in enumerate(held)]
            return sum((getattr(each, name) / mean - 1) ** 2 for each in after for name, mean in means.items())

        chosen = pick(ranks, size, 0).rank

        assert spread_after(chosen) <= min(map(spread_after, range(3))) + 1e-9


def test_a_conversation_comes_back_to_its_decode_rank_until_that_has_much_more_kv_than_another():
    """A rank with 3,200 of 4,000 tokens gets the answer until it has 4 x 3,200 more tokens of KV than another."""
    chosen = [
        pick(
            [rank("decode", 0, Work(9, 0, 0, 64_000 + more)), rank("decode", 1, Work(9, 0, 0, 64_000))],
            RequestSize(4000, 96),
            1,
            find_held=lambda ranks: [HeldPrefix(3200 if load.rank == 0 else 0) for load in ranks],
        ).rank
        for more in (0, 12_799, 12_801)
    ]

    assert chosen == [0, 0, 1]


def test_a_block_on_its_way_to_a_decode_rank_saves_nothing():
    """Blocks that a decode rank will have later do not draw a prompt there, since they would be sent again."""
    helds = [HeldPrefix(3200, 3200), HeldPrefix(64)]
    ranks = [rank("decode", number) for number in range(2)]

    assert pick(ranks, RequestSize(4000, 96), 0, find_held=lambda ranks: [helds[load.rank] for load in ranks]).rank == 1


prompt_works = st.builds(Work, st.integers(0, 5), st.integers(0, 40_000), st.integers(0, 10**9), st.just(0))


@settings(max_examples=100)
@given(st.data(), st.sampled_from(["prefill", "mixed"]), st.integers(1, 20_000))
def test_a_prompt_goes_where_it_is_computed_soonest(data, phase, num_tokens):
    """A prompt goes to the rank with the least sum of queue and missing tokens."""
    size = RequestSize(num_tokens, 20)
    ranks, helds = [], []
    for number in range(data.draw(st.integers(1, 5))):
        num_held = data.draw(st.integers(0, num_tokens - 1))
        held = HeldPrefix(num_held, data.draw(st.integers(0, num_held)))
        work = data.draw(prompt_works) + Work(0, 0, 0, data.draw(st.integers(0, 640)) if phase == "mixed" else 0)
        ranks.append(rank(phase, number, work, kv_tokens=10**6, max_requests=99))
        helds.append(held)

    def time(load, held):
        missing = sum(1 + number / PAIRS_PER_TOKEN for number in range(held.num_tokens + 1, num_tokens + 1))
        queue = load.work.prompt_tokens + load.work.attention_pairs / PAIRS_PER_TOKEN
        own = sum(1 + number / PAIRS_PER_TOKEN for number in range(held.num_ready + 1, held.num_tokens + 1))
        return max(queue - own, 0) + missing + load.work.kv_tokens

    chosen = pick(ranks, size, 0, find_held=lambda ranks: [helds[load.rank] for load in ranks])

    assert time(chosen, helds[chosen.rank]) == pytest.approx(min(map(time, ranks, helds)))


def test_a_conversation_comes_back_to_its_rank_until_the_queue_there_is_longer_than_computing_it():
    """A conversation returns to its rank until the queue there exceeds its 3,200 held tokens."""
    beginning = attention_pairs(0, 3200)
    queues = Work(0, 0, 0, 0), Work(1, 3199, beginning, 0), Work(1, 3201, beginning, 0)
    chosen = [
        pick(
            [rank("prefill", 0, queue), rank("prefill", 1)],
            RequestSize(4000, 9),
            0,
            find_held=lambda ranks: [HeldPrefix(3200 if load.rank == 0 else 0) for load in ranks],
        ).rank
        for queue in queues
    ]

    assert chosen == [0, 0, 1]


def test_embeddings_have_room_by_the_count_of_requests():
    """Prompts to embed have room by the number of requests, without KV."""
    ranks = [rank("prefill", 0, Work(1, 500, 125250, 0)), rank("prefill", 1), rank("decode")]

    assert embedding_room(ranks) == 11
    assert choose_embedding_rank(ranks, SIZE, 0) == ranks[1]


def test_a_request_counts_where_it_stays():
    """A request in prefill counts at its decode rank already."""
    ranks = [rank("prefill", 0, Work(3, 1, 1, 0)), rank("decode", 0, Work(3, 0, 0, 192))]

    assert num_requests(ranks) == 3

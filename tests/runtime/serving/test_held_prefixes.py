"""Requests that arrive at a decode rank which has their prompts' beginnings already."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv.held_prefix import HeldPrefix
from runtime.protocol.counting import PAGE_TOKENS
from runtime.serving.scheduler import Scheduler
from tests.runtime.on_cpu import new_cache
from tests.runtime.serving.test_scheduler import (
    LIMITS,
    LateLink,
    Rank,
    check_limits,
    expected,
    forget_all,
    request,
    shared_request,
)

arrivals = st.tuples(  # prompt's and answer's tokens, root, tokens of its own, whether blocks of its answer are shared
    st.sampled_from((PAGE_TOKENS + 40, 2 * PAGE_TOKENS - 6, 2 * PAGE_TOKENS + 9)),
    st.integers(1, PAGE_TOKENS - 9),
    st.sampled_from((0, 0, 1)),
    st.sampled_from((0, 0, 0, 1, 70)),
    st.booleans(),
)


@settings(max_examples=20, deadline=None)
@given(
    num_pages=st.integers(4, 8),
    wished=st.lists(arrivals, min_size=4, max_size=12),
    gaps=st.lists(st.lists(st.integers(0, 3), max_size=20), min_size=12, max_size=12),
    delays=st.lists(st.integers(1, 4), min_size=12, max_size=12),
    lost=st.sets(st.integers(0, 11), max_size=3),
    aborted=st.sets(st.integers(0, 11), max_size=3),
)
def test_requests_whose_beginnings_are_held_end_with_their_own_latents(
    small_config, num_pages, wished, gaps, delays, lost, aborted
):
    """Requests arrive with the latents that were not held, however many prefixes are held and give way meanwhile.

    No prompt is computed, because a decode rank cannot do that.
    """
    link = LateLink()
    rank = rank_with_blocks(small_config, num_pages, link, roots=(0, 1))
    requests = [arriving(number, *wish, small_config) for number, wish in enumerate(wished)]
    held = []

    def step(num_copies):
        if num_copies == 3:
            forget_all(rank.cache)
        link.go_on(num_copies)
        batch = rank.step()
        check_limits(rank, batch, shares=True)
        assert not batch.prefilling

    def arrive(number):
        if number in lost:
            rank.scheduler.prefixes.release(held[number])
        else:
            rank.scheduler.add(with_prefix(requests[number], held[number]))

    for number, (each, gap) in enumerate(zip(requests, gaps, strict=False)):
        held.append(hold(rank, each))
        for num_copies in gap:
            step(num_copies)
        for due in [due for due in range(number + 1) if due + delays[due] == number + 1]:
            arrive(due)
        if number // 2 in aborted:
            rank.scheduler.abort(str(number // 2))
    for due in [due for due in range(len(requests)) if due + delays[due] > len(requests)]:
        arrive(due)
    while rank.scheduler.has_work():
        step(0)

    gone = {str(number) for number in lost | aborted}
    assert rank.ended == {each.id: expected(each) for each in requests if each.id not in gone or each.id in rank.ended}
    assert rank.cache.num_free_pages == rank.cache.num_pages
    assert rank.scheduler.take_crowded_out() == []


def arriving(number, prompt_tokens, max_tokens, root, num_own, shares_answer, config):
    """Return a request with all latents of its prompt, which begins like all others and may end in its own way."""
    each = shared_request(number, (prompt_tokens, max_tokens, True), root, num_own, shares_answer, config)
    return replace(each, can_start_over=False)


def with_prefix(request, prefix):
    """Let a request arrive with the latents behind those that are held."""
    latents = request.latents[:, prefix.num_tokens :].clone()
    return replace(request, latents=latents, num_kept=prefix.num_tokens, prefix=prefix, table=prefix.table)


def rank_with_blocks(config, num_pages, link, roots=(0,)):
    """Return a decode rank with two blocks of each root, which no request holds."""
    cache = new_cache(config, num_pages * PAGE_TOKENS, link=link)
    rank = Rank(cache, Scheduler(cache, LIMITS), config.latent_dim)
    for root in roots:
        first = arriving(90 + root, 2 * PAGE_TOKENS, 1, root, 0, False, config)
        cache.allocate(first.table, first.num_cached)
        cache.swap_in(first.table, first.latents).copy()
        cache.publish(first.table, 0, first.block_hashes(0, 2), first.tenant)
        cache.free(first.table)
    link.begun.clear()
    return rank


def hold(rank, request):
    """Return the prefix that a rank holds for a request that will arrive."""
    prefix = HeldPrefix(request.block_root, request.block_hashes(0, (request.num_cached - 1) // PAGE_TOKENS))
    rank.scheduler.prefixes.hold(prefix)
    return prefix


def arrive(rank, request):
    """Let a request arrive behind what the rank holds of it. Return it as the rank has it."""
    arrived = with_prefix(request, hold(rank, request))
    rank.scheduler.add(arrived)
    return arrived


def step_until(rank, link, condition, num_copies=9):
    """Step, without computing a prompt."""
    for _ in range(200):
        if condition():
            return
        link.go_on(num_copies)
        assert not rank.step().prefilling
    raise AssertionError("it goes on for ever")


def test_an_abort_releases_what_is_held_for_a_waiting_request(small_config):
    """All pages are free afterwards."""
    rank = rank_with_blocks(small_config, 4, LateLink())
    arrive(rank, arriving(1, 2 * PAGE_TOKENS + 9, 1, 0, 0, False, small_config))
    held = rank.cache.num_pages - rank.cache.num_free_pages
    rank.scheduler.abort("1")

    assert (held, rank.cache.num_free_pages) == (2, 4)


def test_a_request_that_is_alone_gets_the_pages_held_for_others(small_config):
    """All pages are held for two requests, and each needs one more: the older enters, and the younger follows."""
    link = LateLink()
    rank = rank_with_blocks(small_config, 4, link, roots=(0, 1))
    requests = [arriving(root, 2 * PAGE_TOKENS + 9, 3, root, 0, False, small_config) for root in (0, 1)]
    prefixes = [hold(rank, each) for each in requests]
    assert rank.cache.num_free_pages == 0
    for each, prefix in zip(requests, prefixes, strict=True):
        rank.scheduler.add(with_prefix(each, prefix))
    step_until(rank, link, lambda: not rank.scheduler.has_work())

    assert rank.ended == {each.id: expected(each) for each in requests}


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_preempted_request_needs_no_block_that_it_shared(small_config, is_copied):
    """A request that entered with a held beginning is preempted, also while the rest is copied, and loses that."""
    link = LateLink()
    rank = rank_with_blocks(small_config, 5 if is_copied else 4, link)
    rank.scheduler.add(old := request(1, PAGE_TOKENS + 46, 40, True, small_config))
    step_until(rank, link, lambda: old in rank.scheduler.running)
    if is_copied:
        arrive(rank, arriving(2, PAGE_TOKENS + 36, 25, 0, 0, False, small_config))
    young = arrive(rank, arriving(3, PAGE_TOKENS + 36, 27, 0, 0, False, small_config))
    step_until(rank, link, lambda: young in rank.scheduler.running, num_copies=1)
    step_until(rank, link, lambda: young not in rank.scheduler.running, num_copies=9 if is_copied else 0)
    assert old in rank.scheduler.running
    step_until(rank, link, lambda: {each.id for each in rank.scheduler.running} == {"1"}, num_copies=9)
    forget_all(rank.cache)
    step_until(rank, link, lambda: not rank.scheduler.has_work())

    assert rank.ended["3"] == expected(young)

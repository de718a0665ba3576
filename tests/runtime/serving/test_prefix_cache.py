"""Prompts that find their beginnings in the cache get the results of prompts that compute everything, bit for bit."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.kv.index import HASH_BYTES
from runtime.kv.tiers import host
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from runtime.serving import request
from tests.runtime.conversations import (
    CLOSE,
    LIMITS,
    Recorded,
    compare,
    conversations,
    converse,
    demo_engine,
    differences,
    through_host_memory,
)
from tests.runtime.joined_groups import joined_groups
from tests.runtime.one_rank import Rank, Wish

NUM_CONVERSATIONS, NUM_MIXED = (100, 10) if os.environ.get("CI") else (12, 6)


@pytest.fixture(scope="module")
def engine():
    return demo_engine()


@pytest.fixture(scope="module")
def plans(engine):
    return list(conversations(NUM_CONVERSATIONS, engine.config.vocab_size))


@pytest.fixture(scope="module")
def computed(engine, plans):
    """Return the conversations' results at a pair of ranks that shares nothing."""
    rank = Recorded(engine, "pair", LIMITS, block_digest=None)
    converse(rank, plans)
    return rank


@pytest.mark.parametrize(("kind", "number"), [("pair", NUM_CONVERSATIONS), ("mixed", NUM_MIXED)])
def test_what_is_found_is_what_would_be_computed(engine, plans, computed, kind, number):
    """With a prefix cache, every conversation has the same tokens, logprobs and latents, bit for bit."""
    rank = Recorded(engine, kind, LIMITS)
    asked = converse(rank, plans[:number])

    assert differences(rank, computed) == set()
    assert rank.done >= {each for each in asked if each.endswith(".0")}
    assert computed.hits == {}
    assert len(rank.hits) > len(asked) / 3
    assert (rank.num_skipped > 0) == (kind == "pair")
    assert all(scheduler.cache.num_free_pages == scheduler.cache.num_pages for scheduler in rank.schedulers)


@pytest.mark.parametrize("kind", ["pair", "mixed"])
def test_what_went_through_host_memory_is_what_would_be_computed(engine, plans, computed, kind):
    """Results are the same if the cache is so small that blocks leave it and come back all the time."""
    limits = through_host_memory(engine)
    rank = Recorded(engine, kind, limits)
    converse(rank, plans)
    held = [scheduler.cache.memory.reserved_bytes() for scheduler in rank.schedulers]

    assert differences(rank, computed) == set()
    assert rank.schedulers[0].hit_tokens["host"] > rank.schedulers[0].hit_tokens["device"] / 4
    assert all(each["swapped"] == 0 and each["blocks"] <= limits.host_bytes for each in held)
    assert all(scheduler.cache.num_free_pages == scheduler.cache.num_pages for scheduler in rank.schedulers)


def test_a_wrong_bit_in_host_memory_is_found(engine, plans, computed, monkeypatch):
    """The comparison notices a wrong number in one block in host memory."""

    def copy(sources, targets):
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
            target[0, -1, 0] += 2**-20

    monkeypatch.setattr(host, "_copy", copy)
    rank = Recorded(engine, "pair", through_host_memory(engine))
    converse(rank, plans[:NUM_MIXED])

    assert differences(rank, computed)


def test_a_wrong_block_is_found(engine, plans, computed, monkeypatch):
    """The comparison notices a block that has another prompt's latents."""
    monkeypatch.setattr(request, "block_hashes", names_without_a_chain)
    rank = Recorded(engine, "pair", LIMITS)
    converse(rank, plans[:NUM_MIXED])

    assert differences(rank, computed)


def names_without_a_chain(root, token_ids):
    return [number.to_bytes(HASH_BYTES) for number in range(len(token_ids) // PAGE_TOKENS)]


@pytest.mark.parametrize("kind", ["pair", "mixed"])
def test_a_second_turn_computes_what_is_new(engine, kind):
    """A second turn finds the whole blocks of the first, and computes the rest. With another salt it finds nothing.

    A prefill rank sends only the rest to the decode rank that has the first turn.
    """
    rank = Recorded(engine, kind, LIMITS)
    prompt = list(range(8, 8 + 2 * PAGE_TOKENS))
    sampling = Sampling(2, 0.0, 1.0, 0, [])
    for turn, (words, salt) in enumerate([(prompt, ""), (prompt, ""), ([*prompt, 5], ""), ([*prompt, 5], "other")]):
        rank.ask(Wish(str(turn), words, sampling, cache_salt=salt))
        rank.serve(SoloGroup())
    scheduler = rank.schedulers[0]

    assert rank.hits == {"1": PAGE_TOKENS, "2": 2 * PAGE_TOKENS}
    assert rank.num_skipped == (3 * PAGE_TOKENS if kind == "pair" else 0)
    assert (scheduler.queried_tokens["device"], scheduler.hit_tokens["device"]) == (
        8 * PAGE_TOKENS + 2,
        3 * PAGE_TOKENS,
    )


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("cache", ["device", "host"])
def test_the_next_turn_finds_the_answer_before_it(engine, deterministic, cache):
    """In fast mode the next turn also finds the answer's blocks; in deterministic mode only the prompt's."""
    limits = LIMITS if cache == "device" else through_host_memory(engine)
    rank = Rank(engine, "mixed", limits, deterministic=deterministic)
    first = list(range(8, 8 + PAGE_TOKENS + 9))
    sampling = Sampling(PAGE_TOKENS, 0.0, 1.0, 0, [])
    rank.ask(Wish("first", first, sampling))
    rank.serve(SoloGroup())
    (scheduler,) = rank.schedulers
    for _ in range(3):
        scheduler.rest()
    if cache == "host":
        table = []
        scheduler.cache.allocate(table, limits.kv_tokens)
        scheduler.cache.free(table)
    prompt = [*first, *rank.answers()["first"], 5, 6, 7]
    rank.ask(Wish("second", prompt, Sampling(1, 0.0, 1.0, 0, [])))
    rank.serve(SoloGroup())

    assert rank.hits["second"] == (PAGE_TOKENS if deterministic else 2 * PAGE_TOKENS)
    assert scheduler.hit_tokens[cache] == rank.hits["second"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_ranks_of_a_unit_find_what_they_would_compute(plans, free_port, dtype):
    """Two ranks that step together, each with its own cache, have the results of ranks that share nothing."""
    groups = joined_groups(2, free_port())
    with ThreadPoolExecutor(2) as threads:
        engines = list(threads.map(lambda group: demo_engine(dtype, group), groups))

    for name, found, wrong in compare(engines, groups, plans[:4]):
        assert (name, wrong) == (name, [])
        assert found["device"]


@pytest.fixture(scope="module")
def fast_engine():
    return demo_engine(deterministic=False)


def test_fast_ranks_find_what_they_would_compute_but_for_rounding(fast_engine, plans):
    """In fast mode, results agree up to rounding through the cache, host memory and a folder, answers included."""
    for name, found, wrong in compare([fast_engine], [SoloGroup()], plans[:3], CLOSE["fp32"]):
        assert (name, wrong) == (name, [])
        assert found["device"]


def test_a_wrong_block_is_no_rounding(fast_engine, plans, monkeypatch):
    """The comparison up to rounding notices a block that has another prompt's latents."""
    monkeypatch.setattr(request, "block_hashes", names_without_a_chain)

    assert any(wrong for _, _, wrong in compare([fast_engine], [SoloGroup()], plans[:NUM_MIXED], CLOSE["bf16"]))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_decode_rank_shares_its_own_rows_only_in_fast_mode(engine, deterministic):
    """In fast mode the blocks of its answers are not sent back to it. In deterministic mode they have other bits."""
    rank = Recorded(engine, "pair", LIMITS, deterministic=deterministic)
    first = list(range(8, 8 + PAGE_TOKENS + 9))
    rank.ask(Wish("first", first, Sampling(PAGE_TOKENS, 0.0, 1.0, 0, [])))
    rank.serve(SoloGroup())
    rank.ask(Wish("second", [*first, *rank.answers()["first"], 5], Sampling(2, 0.0, 1.0, 0, [])))
    rank.serve(SoloGroup())

    assert rank.num_skipped == (1 if deterministic else 2) * PAGE_TOKENS

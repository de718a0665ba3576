"""Prompts that wait for blocks of a slow tier: nobody else waits, and what comes is what was written."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.device import HostLink
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from runtime.serving.fetches import Fetches
from runtime.serving.request import Request
from tests.runtime.serving.test_scheduler import (
    LateLink,
    check_limits,
    expected,
    forget_all,
    new_rank,
    play,
    shared_request,
    sharing,
)

SIZES = (PAGE_TOKENS + 9, 9, False)
GREEDY = Sampling(1, 0.0, 1.0, 0, [])


class SlowDisk:
    """Writes and reads whatever is due when `go_on` is called."""

    max_blocks = 1000

    def __init__(self, host):
        self.host, self.blocks, self.due, self.loadings = host, {}, [], []

    def begin_load(self, names, tenant, deadline_s):
        self.loadings.append(SlowLoading([(tenant, name) for name in names]))
        return self.loadings[-1]

    def offer(self, name, latents, tenant):
        self.due.append(((tenant, name), latents))

    def go_on(self):
        for key, latents in self.due:
            self.blocks[key] = latents.clone()
        self.due.clear()
        for loading in self.loadings:
            loading.read(self)
        self.loadings.clear()


class SlowLoading:
    def __init__(self, keys):
        self.keys, self.loaded, self.is_over = keys, [], False

    def read(self, disk):
        for key in self.keys:
            latents = disk.host.lend_blank() if key in disk.blocks else None
            if latents is None:
                break
            self.loaded.append(latents.copy_(disk.blocks[key]))
        self.is_over = True

    def is_done(self):
        return self.is_over

    def blocks(self):
        return self.loaded

    def cancel(self):
        self.loaded = []


def rank_with_disk(config, host_blocks, link=None):
    block_bytes = config.num_hidden_layers * PAGE_TOKENS * config.latent_dim * 4
    rank = new_rank(config, link or HostLink(), host_bytes=host_blocks * block_bytes)
    disk = SlowDisk(rank.cache.host)
    rank.scheduler.use(disk)
    return rank, disk


def serve(rank, disk, *requests):
    """Let requests come together, and be answered; then let their blocks be in host memory."""
    for each in requests:
        rank.scheduler.add(each)
    while rank.scheduler.has_work():
        disk.go_on()
        rank.step()
    for _ in range(2):
        rank.scheduler.rest()


def forget_host(rank):
    """Let host memory have been needed for something else."""
    rank.scheduler.rest()
    rank.cache.host._give_way(2**30)


def test_a_block_is_written_when_it_is_used_again_and_read_when_memory_has_lost_it(small_config):
    """Its first use writes nothing. Equal prompts wait for one loading; what it brought is not written again."""
    rank, disk = rank_with_disk(small_config, 4)
    requests = [shared_request(number, SIZES, 0, 1, False, small_config) for number in range(4)]
    serve(rank, disk, requests[0])
    after_first = dict(disk.blocks)
    serve(rank, disk, requests[1])
    disk.go_on()
    forget_all(rank.cache)
    forget_host(rank)
    before = sum(rank.scheduler.hit_tokens[tier] for tier in ("device", "host"))
    for each in requests[2:]:
        rank.scheduler.add(each)
    num_loadings = len(disk.loadings)
    serve(rank, disk)

    assert (after_first, len(disk.blocks), num_loadings) == ({}, 1, 1)
    assert rank.scheduler.hit_tokens["disk"] == PAGE_TOKENS
    assert sum(rank.scheduler.hit_tokens[tier] for tier in ("device", "host")) == before + PAGE_TOKENS
    assert rank.scheduler.queried_tokens["disk"] > 0
    assert rank.ended == {each.id: expected(each) for each in requests}


def test_a_block_is_written_when_it_is_computed_again(small_config):
    """Memory had lost it. It is written as soon as host memory has it, and the next prompt finds it on the disk."""
    rank, disk = rank_with_disk(small_config, 4)
    requests = [shared_request(number, SIZES, 0, 1, False, small_config) for number in range(3)]
    num_written = []
    for each in requests:
        serve(rank, disk, each)
        disk.go_on()
        num_written.append(len(disk.blocks))
        forget_all(rank.cache)
        forget_host(rank)

    assert num_written == [0, 1, 1]
    assert rank.scheduler.hit_tokens == {"device": 0, "host": 0, "disk": PAGE_TOKENS}
    assert rank.ended == {each.id: expected(each) for each in requests}


def test_blocks_whose_pages_were_needed_for_others_are_forgotten():
    """No more blocks that never came to host memory are remembered than there are pages."""
    offered, in_host = [], {}
    cache = SimpleNamespace(num_pages=2, host=SimpleNamespace(lend=in_host.get))
    slow = SimpleNamespace(max_blocks=1000, offer=lambda name, latents, tenant: offered.append(name))
    fetches = Fetches(cache, slow)
    prompt = Request("0", list(range(3 * PAGE_TOKENS)), GREEDY, num_cached=3 * PAGE_TOKENS, block_root=b"root")
    for _ in range(2):
        fetches.note_use(prompt)
    names = prompt.block_hashes(0, 3)
    in_host.update(dict.fromkeys(names, "latents"))
    fetches.offer_saved(names)

    assert offered == names[1:]


def test_others_overtake_a_prompt_that_waits_for_a_disk(small_config):
    """Steps go on without it, and it is counted as waiting; one that is aborted is gone."""
    rank, disk = rank_with_disk(small_config, 4)
    slow, gone = (shared_request(number, SIZES, number, 1, False, small_config) for number in range(2))
    short = shared_request(2, (PAGE_TOKENS - 9, 3, False), 0, 1, False, small_config)
    for each in (slow, gone, short):
        rank.scheduler.add(each)
    waiting = rank.scheduler.fetching
    for _ in range(9):
        rank.step()
    aborted = rank.scheduler.abort(gone.id)
    ended = list(rank.ended)
    serve(rank, disk)

    assert waiting == [slow, gone]
    assert aborted == [gone]
    assert ended == [short.id]
    assert list(rank.ended) == [short.id, slow.id]


@pytest.mark.parametrize("host_blocks", [1, 3, 9])
@settings(max_examples=25, deadline=None)
@given(
    wished=st.lists(sharing, min_size=1, max_size=12),
    gaps=st.lists(st.lists(st.integers(0, 7), max_size=5), min_size=12, max_size=12),
    aborted=st.sets(st.integers(0, 11)),
)
def test_requests_end_with_their_own_latents_however_late_a_disk_is(small_config, host_blocks, wished, gaps, aborted):
    """Blocks come through all tiers, and are forgotten in each; nobody reads what is not his."""
    link = LateLink()
    rank, disk = rank_with_disk(small_config, host_blocks, link)
    requests = [shared_request(number, *wish, small_config) for number, wish in enumerate(wished)]

    def step(number):
        if number == 3:
            forget_all(rank.cache)
        if number > 3 or not rank.scheduler.running:
            disk.go_on()
        link.go_on(number % 4)
        check_limits(rank, rank.step(), shares=True)

    gone = play(rank, requests, gaps, aborted, step)
    disk.go_on()
    rank.scheduler.rest()

    assert rank.ended == {each.id: expected(each) for each in requests if each.id not in gone or each.id in rank.ended}
    assert rank.cache.num_free_pages == rank.cache.num_pages
    assert torch.tensor([len(latents) for latents in disk.blocks.values()]).eq(small_config.num_hidden_layers).all()

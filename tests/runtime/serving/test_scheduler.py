"""The scheduler keeps its limits and every request's pages and latents, under any mixture of requests."""

from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.device import HostLink, PendingCopy
from runtime.kv.cache import LatentCache, slot_mapping
from runtime.kv.host_memory import HostMemory
from runtime.launch import Limits
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from runtime.serving.request import Request
from runtime.serving.scheduler import Scheduler
from tests.runtime.on_cpu import new_cache

MAX_REQUEST_TOKENS = 3 * PAGE_TOKENS
LIMITS = Limits(max_requests=4, max_request_tokens=MAX_REQUEST_TOKENS, max_batch_tokens=50, kv_tokens=4 * PAGE_TOKENS)

wishes = st.tuples(st.integers(1, 2 * PAGE_TOKENS), st.integers(1, PAGE_TOKENS), st.booleans())
prompts_of_pages = st.sampled_from((PAGE_TOKENS + 6, PAGE_TOKENS + 40, 2 * PAGE_TOKENS, 2 * PAGE_TOKENS - 9))
wishes_that_share = st.tuples(
    prompts_of_pages, st.integers(1, PAGE_TOKENS), st.sampled_from((False, False, False, True))
)
sharing = st.tuples(  # root, own tokens, whether blocks of its answer are shared
    wishes_that_share, st.sampled_from((0, 0, 1)), st.sampled_from((0, 1, 2, 70)), st.booleans()
)


@dataclass
class Rank:
    """A rank whose model writes each token's id as its latent, and predicts the number of tokens so far."""

    cache: LatentCache
    scheduler: Scheduler
    latent_dim: int
    ended: dict[str, list[int]] = field(default_factory=dict)

    def step(self):
        batch = self.scheduler.schedule()
        for each in set(batch.requests):
            assert cached_tokens(self.cache, each) == [*each.prompt_ids, *each.generated][: each.num_cached]
        for chunk in (*batch.prefilling, *batch.decoding):
            latents = torch.tensor(chunk.token_ids).float()[:, None].expand(-1, self.latent_dim)
            for layer in self.cache.layers:
                layer.write(torch.tensor(slot_mapping(chunk.table, chunk.start, chunk.end)), latents)
        for request, chunk in zip(batch.requests, (*batch.prefilling, *batch.decoding), strict=True):
            self.scheduler.advance(request, chunk.end)
            if request.is_computed:
                request.generated.append(request.num_tokens)
                if len(request.generated) == request.sampling.max_tokens:
                    self.ended[request.id] = cached_tokens(self.cache, request)
                    self.scheduler.end(request)
        return batch


def cached_tokens(cache, request):
    """Return the token ids that the request's pages hold."""
    return cache.copy_to_host(request.table, request.num_cached)[0, :, 0].int().tolist()


class LateLink(HostLink):
    """Copies to the device one after the other, as a queue beside the compute does, whenever `go_on` says so.

    Copies from the device are as late as can be: when they are joined.
    """

    def __init__(self):
        self.begun, self.num_done = [], 0

    def begin_copy_to_device(self, copy):
        self.begun.append(copy)
        return PendingCopy(self, len(self.begun), copy)

    def begin_copy_from_device(self, copy):
        joined = []
        queue = SimpleNamespace(join=lambda mark: joined.append(copy()), has_passed=lambda mark: bool(joined))
        return PendingCopy(queue, None, copy)

    def has_passed(self, mark):
        return self.num_done >= mark

    def join(self, mark):
        self.go_on(mark - self.num_done)

    def go_on(self, num_copies):
        for copy in self.begun[self.num_done :][: max(num_copies, 0)]:
            copy()
            self.num_done += 1


class EarlyLink(LateLink):
    """Copies to the device as early as can be: at once. Those from it are as late as before."""

    def begin_copy_to_device(self, copy):
        copy()


def new_rank(config, link=None, **options):
    cache = new_cache(config, LIMITS.kv_tokens, link=link, **options)
    return Rank(cache, Scheduler(cache, LIMITS), config.latent_dim)


def request(number, prompt_tokens, max_tokens, has_prompt_kv, config):
    """Return a request with a prompt to compute, or one with its latents and first token."""
    prompt = list(range(1000 * number, 1000 * number + prompt_tokens))
    sampling = Sampling(max_tokens + has_prompt_kv, 0.0, 1.0, 0, [])
    if not has_prompt_kv:
        return Request(str(number), prompt, sampling)
    shape = (config.num_hidden_layers, prompt_tokens, config.latent_dim)
    latents = torch.tensor(prompt).float()[None, :, None].expand(shape)
    return Request(str(number), prompt, sampling, [prompt_tokens], prompt_tokens, latents=latents)


def expected(request):
    """Return the tokens whose latents are in the cache when the request ends: all but the last."""
    num_prompt = len(request.prompt_ids)
    return request.prompt_ids + list(range(num_prompt, num_prompt + request.sampling.max_tokens - 1))


@settings(max_examples=60, deadline=None)
@given(wished=st.lists(wishes, min_size=1, max_size=12), gaps=st.lists(st.integers(0, 5), min_size=12, max_size=12))
def test_every_request_ends_with_its_own_latents(small_config, wished, gaps):
    """Whatever comes and is preempted, each request computes every token once and has its own latents."""
    rank = new_rank(small_config)
    requests = [request(number, *wish, small_config) for number, wish in enumerate(wished)]
    for each, gap in zip(requests, gaps, strict=False):
        rank.scheduler.add(each)
        for _ in range(gap):
            check_limits(rank, rank.step())
    while rank.scheduler.has_work():
        check_limits(rank, rank.step())

    assert rank.ended == {each.id: expected(each) for each in requests}
    assert rank.cache.num_free_pages == rank.cache.num_pages


@settings(max_examples=60, deadline=None)
@given(
    wished=st.lists(wishes, min_size=1, max_size=12),
    gaps=st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=12, max_size=12),
    aborted=st.sets(st.integers(0, 11)),
)
def test_requests_end_with_their_own_latents_however_late_these_come(small_config, wished, gaps, aborted):
    """If copies end in any later step, no step misses latents that it needs, and no copy writes to freed pages."""
    link = LateLink()
    rank = new_rank(small_config, link)
    requests = [request(number, *wish, small_config) for number, wish in enumerate(wished)]

    def step(num_copies):
        link.go_on(num_copies)
        check_limits(rank, rank.step())

    gone = play(rank, requests, gaps, aborted, step)

    assert rank.ended == {each.id: expected(each) for each in requests if each.id not in gone or each.id in rank.ended}
    assert rank.cache.num_free_pages == rank.cache.num_pages


def test_a_request_takes_part_once_its_latents_are_there(small_config):
    """A request takes part when its copy is done, or at once if it is alone; other requests do not wait for it."""
    link = LateLink()
    rank = new_rank(small_config, link)
    rank.scheduler.add(request(0, 10, 9, True, small_config))
    alone = len(rank.step().decoding)
    rank.scheduler.add(request(1, 10, 9, True, small_config))
    beside = [len(rank.step().decoding) for _ in range(2)]
    link.go_on(1)

    assert (alone, beside, len(rank.step().decoding)) == (1, [1, 1], 2)


def test_one_that_is_preempted_on_its_way_in_keeps_its_latents(small_config):
    """A request that is preempted during its copy keeps its host latents; nothing is copied back."""
    link = LateLink()
    rank = new_rank(small_config, link)
    first = request(0, 2 * PAGE_TOKENS, 30, False, small_config)
    last = request(1, 2 * PAGE_TOKENS - 9, 2, True, small_config)
    rank.scheduler.add(first)
    rank.step()
    rank.scheduler.add(last)
    latents = last.latents
    while last not in rank.scheduler.running:
        rank.step()
    while last in rank.scheduler.running:
        rank.step()

    assert last.latents is latents
    assert link.num_done == 1


@settings(max_examples=60, deadline=None)
@given(
    wished=st.lists(sharing, min_size=1, max_size=12),
    gaps=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=12, max_size=12),
    aborted=st.sets(st.integers(0, 11)),
    host_blocks=st.sampled_from((0, 1, 3, 9)),
)
def test_requests_that_share_blocks_end_with_their_own_latents(small_config, wished, gaps, aborted, host_blocks):
    """Requests that share blocks end with their own latents, if they wait, are preempted, start over or are aborted.

    Blocks that leave the cache come back from host memory, as far as there is room.
    """
    link = LateLink()
    block_bytes = small_config.num_hidden_layers * PAGE_TOKENS * small_config.latent_dim * 4
    rank = new_rank(small_config, link, host_bytes=host_blocks * block_bytes)
    requests = [shared_request(number, *wish, small_config) for number, wish in enumerate(wished)]

    def step(num_copies):
        if num_copies == 3:
            forget_all(rank.cache)
        link.go_on(num_copies)
        check_limits(rank, rank.step(), shares=True)

    gone = play(rank, requests, gaps, aborted, step)

    assert rank.ended == {each.id: expected(each) for each in requests if each.id not in gone or each.id in rank.ended}
    assert rank.cache.num_free_pages == rank.cache.num_pages
    assert rank.scheduler.hit_tokens <= rank.scheduler.queried_tokens
    link.begun.clear()  # which hold what they copied, as the aborted hold what they had
    for each in requests:
        each.latents = None
    assert rank.cache.memory.reserved_bytes()["swapped"] == 0


def play(rank, requests, gaps, aborted, step):
    """Add requests one after another, each followed by steps with copies that end. Return the aborted ids."""
    for number, (each, gap) in enumerate(zip(requests, gaps, strict=False)):
        rank.scheduler.add(each)
        for num_copies in gap:
            step(num_copies)
        if number // 2 in aborted:
            rank.scheduler.abort(str(number // 2))
    while rank.scheduler.has_work():
        step(0)
    return {str(number // 2) for number in range(len(requests)) if number // 2 in aborted}


def shared_request(number, wish, root, num_own, shares_answer, config):
    """Return a request whose prompt begins like all others of its root, and may end in its own way."""
    each = request(0, *wish, config)
    length = len(each.prompt_ids)
    prompt = list(range(max(length - num_own, 0))) + [9000 + number] * min(num_own, length)
    latents = each.latents if each.latents is None else torch.tensor(prompt).float()[None, :, None] + 0 * each.latents
    shared = {"block_root": bytes([root]), "cache_salt": f"{root:016}", "shares_answer": shares_answer}
    return replace(each, id=str(number), prompt_ids=prompt, latents=latents, **shared)


def test_blocks_that_left_the_cache_come_back_from_host_memory(small_config):
    """A prompt loads its blocks from host memory and computes the rest. An equal prompt waits for that copy."""
    link = LateLink()
    rank = new_rank(small_config, link, host_bytes=2**20)
    sizes = (PAGE_TOKENS + 9, 9, False)
    requests = [shared_request(number, sizes, 0, 1, False, small_config) for number in range(3)]
    rank.scheduler.add(requests[0])
    while rank.scheduler.has_work():
        rank.step()
    for _ in range(2):
        rank.scheduler.rest()
    forget_all(rank.cache)
    num_begun = len(link.begun)
    for each in requests[1:]:
        rank.scheduler.add(each)
    chunks = [(chunk.start, chunk.end) for chunk in rank.step().prefilling]

    assert chunks == [(PAGE_TOKENS, PAGE_TOKENS + 9)] * 2
    assert requests[1].table[0] == requests[2].table[0]
    assert len(link.begun) == num_begun + 1
    assert +rank.scheduler.hit_tokens == {"host": PAGE_TOKENS, "device": PAGE_TOKENS}


def test_a_page_is_saved_before_latents_come_into_it(small_config):
    """A device copies both ways at once. The block that host memory has under its name is the one that was there."""
    rank = new_rank(small_config, EarlyLink(), host_bytes=2**20)
    sizes = (PAGE_TOKENS + 9, 1, False)
    first, again = (shared_request(number, sizes, 0, 1, False, small_config) for number in range(2))
    rank.scheduler.add(first)
    while rank.scheduler.has_work():
        rank.step()
    rank.scheduler.rest()
    for number, prompt_tokens in ((2, 2 * PAGE_TOKENS), (3, 10)):
        rank.scheduler.add(request(number, prompt_tokens, 1, True, small_config))
    while rank.scheduler.has_work():
        rank.step()
    rank.scheduler.add(again)
    while rank.scheduler.has_work():
        rank.step()

    assert rank.scheduler.hit_tokens["host"] == PAGE_TOKENS
    assert rank.ended[again.id] == expected(again)


@pytest.mark.parametrize(("prompt_tokens", "has_room"), [(50, True), (100, False)])
def test_a_preempted_request_takes_the_room_of_blocks_or_is_given_up(small_config, prompt_tokens, has_room):
    """A preempted request takes host memory from blocks.

    If it does not fit at all, it is given up and keeps no page.
    """
    num_bytes = PAGE_TOKENS * small_config.num_hidden_layers * small_config.latent_dim * 4
    memory = HostMemory(num_bytes)
    rank = new_rank(small_config, memory=memory, host_bytes=num_bytes)
    rank.scheduler.add(shared_request(0, (PAGE_TOKENS + 9, 1, False), 0, 1, False, small_config))
    while rank.scheduler.has_work():
        rank.step()
    for _ in range(2):
        rank.scheduler.rest()
    before = memory.reserved_bytes()
    rank.scheduler.add(request(1, 2 * PAGE_TOKENS - 1, 30, False, small_config))
    rank.scheduler.add(request(2, prompt_tokens, 30, False, small_config))
    while not rank.scheduler.num_preemptions:
        rank.step()
    after = memory.reserved_bytes()
    while rank.scheduler.has_work():
        rank.step()

    assert before == {"arriving": 0, "swapped": 0, "blocks": num_bytes}
    assert after["swapped"] == (num_bytes if has_room else 0)
    assert [each.id for each in rank.scheduler.take_crowded_out()] == ([] if has_room else ["2"])
    assert rank.ended.keys() == ({"0", "1", "2"} if has_room else {"0", "1"})
    assert rank.cache.num_free_pages == rank.cache.num_pages


def test_equal_prompts_that_come_together_are_computed_once(small_config):
    """Equal prompts that come together wait for the first one's blocks and share its pages."""
    rank = new_rank(small_config)
    requests = [shared_request(number, (PAGE_TOKENS + 9, 9, False), 0, 1, False, small_config) for number in range(2)]
    for each in requests:
        rank.scheduler.add(each)
    steps = [[(chunk.start, chunk.end) for chunk in rank.step().prefilling] for _ in range(3)]

    assert steps == [[(0, 50)], [(50, PAGE_TOKENS + 9)], [(PAGE_TOKENS, PAGE_TOKENS + 9)]]
    assert requests[0].table[0] == requests[1].table[0]
    assert requests[1].num_hits == PAGE_TOKENS


def test_one_that_comes_back_finds_the_pages_it_shared_or_starts_over(small_config):
    """A preempted request finds the shared pages when it comes back; if they are gone, it computes its tokens again."""
    for other_ends in (False, True):
        rank = new_rank(small_config)
        sizes = (PAGE_TOKENS + 9, 60, False)
        first, second = (shared_request(number, sizes, 0, 1, False, small_config) for number in range(2))
        for each in (first, second):
            rank.scheduler.add(each)
        while not second.generated:
            rank.step()
        rank.scheduler._preempt(rank.scheduler.running.pop())
        kept = second.num_kept, second.latents.shape[1]
        if other_ends:
            rank.scheduler.abort(first.id)
            forget_all(rank.cache)
        while rank.scheduler.has_work():
            check_limits(rank, rank.step(), shares=True)

        assert kept == (PAGE_TOKENS, 9)
        assert rank.ended[second.id] == expected(second)
        assert second.starts_over == other_ends


def forget_all(cache):
    """Let other requests take all free pages."""
    table = []
    cache.allocate(table, cache.num_free_pages * PAGE_TOKENS)
    cache.free(table)


def check_limits(rank, batch, shares=False):
    """Check that a step works if it can, within the launch file's limits, and that every written page has one owner."""
    holders = Counter(page for each in (*rank.scheduler.running, *rank.scheduler.prefixes._held) for page in each.table)
    written = [
        chunk.table[position // PAGE_TOKENS]
        for chunk in (*batch.prefilling, *batch.decoding)
        for position in range(chunk.start, min(chunk.end, len(chunk.table) * PAGE_TOKENS))
    ]
    held = list(holders) if shares else list(holders.elements())
    assert sum(len(chunk.token_ids) for chunk in batch.prefilling) <= LIMITS.max_batch_tokens
    assert len(batch.requests) <= LIMITS.max_requests
    assert len(set(held)) == len(held) == rank.cache.num_pages - rank.cache.num_free_pages
    assert all(holders[page] <= 1 for page in written)
    assert batch.requests or not rank.scheduler.has_work()


def test_chunks_of_several_prompts_share_a_step(small_config):
    """In steps of 50 tokens the first prompt takes what it needs, and the next one the rest."""
    rank = new_rank(small_config)
    for number, length in enumerate((70, 45)):
        rank.scheduler.add(request(number, length, 1, False, small_config))
    steps = [[(chunk.start, chunk.end) for chunk in rank.step().prefilling] for _ in range(3)]

    assert steps == [[(0, 50)], [(50, 70), (0, 30)], [(30, 45)]]


def test_the_newest_leaves_when_pages_run_out_and_comes_back_first(small_config):
    """When pages run out, the newest request is preempted, and it continues first when pages are free."""
    rank = new_rank(small_config)
    requests = [request(number, PAGE_TOKENS - 1, 20, True, small_config) for number in range(5)]
    for each in requests:
        rank.scheduler.add(each)
    rank.step()
    before = list(rank.scheduler.running)
    rank.step()

    assert before == requests[:4]
    assert rank.scheduler.running == requests[:2]
    assert list(rank.scheduler.waiting) == requests[2:]
    assert rank.scheduler.num_preemptions == 2


def test_the_aborted_leave_no_page_behind(small_config):
    """An aborted request frees its pages, whether it was running, in prefill, preempted or waiting."""
    rank = new_rank(small_config)
    for number in range(6):
        rank.scheduler.add(request(number, PAGE_TOKENS - 1, 40, number % 2, small_config))
    for _ in range(3):
        rank.step()
    for number in range(6):
        rank.scheduler.abort(str(number))

    assert not rank.scheduler.has_work()
    assert rank.cache.num_free_pages == rank.cache.num_pages

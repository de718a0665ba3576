"""The scheduler under any mixture of requests: limits hold, pages and latents are where they belong, nobody is lost."""

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv.cache import LatentCache, slot_mapping
from runtime.launch import Limits
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from runtime.serving.request import Request
from runtime.serving.scheduler import Scheduler
from tests.runtime.on_cpu import new_cache

MAX_REQUEST_TOKENS = 3 * PAGE_TOKENS
LIMITS = Limits(max_requests=4, max_request_tokens=MAX_REQUEST_TOKENS, max_batch_tokens=50, kv_tokens=4 * PAGE_TOKENS)

wishes = st.tuples(st.integers(1, 2 * PAGE_TOKENS), st.integers(1, PAGE_TOKENS), st.booleans())


@dataclass
class Rank:
    """A rank whose model writes a token's id as its latent, and whose next token is the number of tokens so far."""

    cache: LatentCache
    scheduler: Scheduler
    latent_dim: int
    ended: dict[str, list[int]] = field(default_factory=dict)

    def step(self):
        batch = self.scheduler.schedule()
        for chunk in (*batch.prefilling, *batch.decoding):
            latents = torch.tensor(chunk.token_ids).float()[:, None].expand(-1, self.latent_dim)
            for layer in self.cache.layers:
                layer.write(torch.tensor(slot_mapping(chunk.table, chunk.start, chunk.end)), latents)
        for request, chunk in zip(batch.requests, (*batch.prefilling, *batch.decoding), strict=True):
            request.num_cached = chunk.end
            if not request.is_prefilling:
                request.generated.append(request.num_tokens)
                if len(request.generated) == request.sampling.max_tokens:
                    self.ended[request.id] = cached_tokens(self.cache, request)
                    self.scheduler.end(request)
        return batch


def cached_tokens(cache, request):
    """The token ids that the request's pages hold."""
    return cache.swap_out(request.table, request.num_cached)[0, :, 0].int().tolist()


def new_rank(config):
    cache = new_cache(config, LIMITS.kv_tokens, torch.float32)
    return Rank(cache, Scheduler(cache, LIMITS), config.latent_dim)


def request(number, prompt_tokens, max_tokens, has_prompt_kv, config):
    """A prompt to compute, or one that comes with its latents and its first token."""
    prompt = list(range(1000 * number, 1000 * number + prompt_tokens))
    sampling = Sampling(max_tokens + has_prompt_kv, 0.0, 1.0, 0, [])
    if not has_prompt_kv:
        return Request(str(number), prompt, sampling)
    shape = (config.num_hidden_layers, prompt_tokens, config.latent_dim)
    latents = torch.tensor(prompt).float()[None, :, None].expand(shape)
    return Request(str(number), prompt, sampling, [prompt_tokens], prompt_tokens, latents=latents)


def expected(request):
    """Tokens whose latents are in the cache when the request ends: all but the last."""
    num_prompt = len(request.prompt_ids)
    return request.prompt_ids + list(range(num_prompt, num_prompt + request.sampling.max_tokens - 1))


@settings(max_examples=60, deadline=None)
@given(wished=st.lists(wishes, min_size=1, max_size=12), gaps=st.lists(st.integers(0, 5), min_size=12, max_size=12))
def test_every_request_ends_with_its_own_latents(small_config, wished, gaps):
    """However requests come, whatever is preempted: each computes every token once, and pages hold nobody else's."""
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


def check_limits(rank, batch):
    """A step that has work does some, within what the launch file allows; every page has one owner."""
    held = [page for each in rank.scheduler.running for page in each.table]
    assert sum(len(chunk.token_ids) for chunk in batch.prefilling) <= LIMITS.max_batch_tokens
    assert len(batch.requests) <= LIMITS.max_requests
    assert len(set(held)) == len(held) == rank.cache.num_pages - rank.cache.num_free_pages
    assert batch.requests or not rank.scheduler.has_work()


def test_chunks_of_several_prompts_share_a_step(small_config):
    """The first prompt takes what it needs, the next what is left, in steps of 50 tokens."""
    rank = new_rank(small_config)
    for number, length in enumerate((70, 45)):
        rank.scheduler.add(request(number, length, 1, False, small_config))
    steps = [[(chunk.start, chunk.end) for chunk in rank.step().prefilling] for _ in range(3)]

    assert steps == [[(0, 50)], [(50, 70), (0, 30)], [(30, 45)]]


def test_the_newest_leaves_when_pages_run_out_and_comes_back_first(small_config):
    """Three requests of a page and a bit in four pages: the third is preempted by the first's growth, and goes on."""
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
    """Running, half prefilled, preempted or never begun."""
    rank = new_rank(small_config)
    for number in range(6):
        rank.scheduler.add(request(number, PAGE_TOKENS - 1, 40, number % 2, small_config))
    for _ in range(3):
        rank.step()
    for number in range(6):
        rank.scheduler.abort(str(number))

    assert not rank.scheduler.has_work()
    assert rank.cache.num_free_pages == rank.cache.num_pages

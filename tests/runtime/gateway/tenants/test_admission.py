"""Requests wait for ranks in turn, with fake ranks and on real sockets."""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import openai
import pytest
from prometheus_client import CollectorRegistry

from runtime.gateway.edge.http_errors import ApiError
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.gateway.tenants.admission import Admission, QueueLimits, caller_name, num_ahead
from runtime.gateway.tenants.resumption_queue import ResumptionQueue
from runtime.protocol.messages import State, Token
from tests.runtime.gateway.conftest import ADDRESS, EOS_ID, MAX_REQUESTS, PATIENCE_S, FakePair

MODEL = "org/tiny"
NUM_QUEUED = 40
HOG, HONEST = [5, 5, 5], [6, 6]


class Ranks:
    """One unit of one rank with `free` places. `started` has the requests that got one."""

    def __init__(self, free, num_queued=6, timeout_s=60.0):
        self.free, self.prompt_tokens = free, 0
        self.started, self.given_up = [], []
        registry = SimpleNamespace(
            room=lambda size: self.free,
            embedding_room=lambda size: self.free,
            num_requests=lambda: len(self.started),
            num_answer_ranks=lambda: 1,
            num_prompt_ranks=lambda: 1,
            least_prompt_tokens=lambda: None if self.free is None else self.prompt_tokens,
            call_on_room=self._keep,
        )
        metrics = GatewayMetrics(CollectorRegistry(), "tiny")
        self.admission = Admission(
            ResumptionQueue(registry, metrics, 1.0), metrics, QueueLimits(num_queued, 100, timeout_s)
        )
        self.queue = self.admission.answers

    def ask(self, caller, cost=1):
        """Return the turn of one more request."""
        return self.queue.join(caller, cost, lambda: self._start(caller), lambda why: self.given_up.append(why))

    async def give(self, num_free):
        """Free so many places, and wait until that is noticed."""
        self.free = num_free
        self.on_room()
        await asyncio.sleep(0)

    def _keep(self, call):
        self.on_room = call

    def _start(self, caller):
        if not self.free:
            return False
        self.free -= 1
        self.started.append(caller)
        return True


def test_who_finds_room_does_not_wait():
    """A request that finds room is at the ranks when `join` returns."""

    async def run():
        ranks = Ranks(2)
        ranks.ask("a")
        return ranks.started

    assert asyncio.run(run()) == ["a"]


def test_places_go_to_callers_in_turn():
    """Free places go to callers in turn."""

    async def run():
        ranks = Ranks(2)
        for caller in "aaaaabb":
            ranks.ask(caller)
        for _ in range(4):
            await ranks.give(1)
        return "".join(ranks.started)

    assert asyncio.run(run()) == "aababa"


def test_prompts_wait_while_ranks_have_enough_to_compute():
    """Prompts wait while ranks have enough to compute, even if places are free."""

    async def run():
        ranks = Ranks(5)
        ranks.prompt_tokens = 100
        ranks.ask("a")
        before = list(ranks.started)
        ranks.prompt_tokens = 99
        await ranks.give(5)
        return before, ranks.started

    assert asyncio.run(run()) == ([], ["a"])


def test_a_request_that_ends_in_the_line_never_starts():
    """A request that ends in the queue never starts, and its place is free."""

    async def run():
        ranks = Ranks(0, num_queued=1)
        turn = ranks.ask("a")
        before = ranks.queue.room("a")
        ranks.queue.end(turn, 1)
        after = ranks.queue.room("a")
        await ranks.give(1)
        return before, after, ranks.started

    assert asyncio.run(run()) == (0, 1, [])


def test_a_full_line_refuses_whoever_has_its_share_and_says_when_to_ask_again():
    """A full queue refuses a caller that has its share, with a time by its share of the places."""

    async def run():
        ranks = Ranks(0)
        for _ in range(6):
            ranks.ask("hog")
        ranks.queue.check("other", 3)
        with pytest.raises(ApiError) as others:
            ranks.queue.check("other", 4)
        ranks.ask("other")
        ranks.admission.answers._metrics.pace.record(14.0)
        with pytest.raises(ApiError) as hogs:
            ranks.queue.check("hog", 2)
        return others.value, hogs.value

    others, hogs = asyncio.run(run())

    assert (others.status, others.code, others.retry_after_s) == (429, "overloaded", 1)
    assert hogs.retry_after_s == 8  # two more, every other one of seven in 14 s


def test_without_units_nobody_waits_for_ever():
    """Without units, waiting requests are given up after a while."""

    async def run(comes_back):
        ranks = Ranks(0, timeout_s=0.05)
        ranks.ask("a")
        await ranks.give(None)
        if comes_back:
            await ranks.give(0)
        else:
            while not ranks.given_up:
                await asyncio.sleep(0.01)
        return ranks.given_up, ranks.queue.room("a")

    assert asyncio.run(run(comes_back=False)) == (["no units have been ready for 0.05 s"], None)
    assert asyncio.run(run(comes_back=True)) == ([], 5)


def test_a_gateway_that_stops_gives_up_the_line():
    """A gateway that stops gives up all waiting and later requests."""

    async def run():
        ranks = Ranks(0)
        ranks.ask("a")
        ranks.admission.close("the gateway is stopping")
        ranks.ask("b")
        return ranks.given_up

    assert asyncio.run(run()) == ["the gateway is stopping"] * 2


@pytest.mark.parametrize(
    ("max_requests", "max_queued", "ahead"), [(256, 64, 32), (8, 64, 1), (1, 64, 1), (256, 3, 3), (8, 0, 0)]
)
def test_a_rank_is_given_few_requests_ahead(max_requests, max_queued, ahead):
    """A rank gets an eighth of its places ahead, at least one, and at most the queue."""
    assert num_ahead(max_requests, max_queued) == ahead


@pytest.mark.parametrize(
    ("name", "host", "caller"),
    [
        ("team", "10.0.0.1", "team"),
        (None, "10.0.0.1", "10.0.0.1"),
        (None, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        (None, "/run/gateway.sock", "/run/gateway.sock"),
    ],
)
def test_a_caller_is_a_key_or_an_address(name, host, caller):
    """A caller without a key is its IPv4 address or its IPv6 network of 64 bits."""
    request = SimpleNamespace(
        client=SimpleNamespace(host=host), state=SimpleNamespace(account=SimpleNamespace(name=name))
    )

    assert caller_name(request) == caller


@pytest.fixture
def crowded_gateway(start_gateway, join, wait_until):
    """Return a gateway with the keys `honest` and `hog`, and its ready pair of ranks, which answer nothing."""
    hashes = {name: "sha256:" + hashlib.sha256(name.encode()).hexdigest() for name in ("hog", "honest")}
    keys = {"keys": [{"name": name, "hash": its} for name, its in hashes.items()]}
    gateway = start_gateway(keys=keys, max_queued_requests=NUM_QUEUED)
    pair = FakePair(*(join(at=gateway, phase=phase) for phase in ("prefill", "decode")))
    pair.prefill.on_prefill = None
    for rank in (pair.prefill, pair.decode):
        rank.say(State("ready"))
    wait_until(lambda: gateway.ready_report()["ready"], "the pair is ready")
    return gateway, pair


def test_three_streams_of_sixteen_do_not_hold_an_honest_request(crowded_gateway, wait_until):
    """An honest request gets the next free place, before the hog's 39 earlier ones."""
    gateway, pair = crowded_gateway
    num_at_ranks = MAX_REQUESTS + num_ahead(MAX_REQUESTS, NUM_QUEUED)

    def answer(prompt):
        pair.prefill.say(Token(prompt.request_id, 0, EOS_ID, "stop"))

    def wait_for(num_requests):
        wait_until(lambda: gateway.metric("tidemill_num_requests_waiting") == num_requests, f"{num_requests} have come")

    url = f"http://{ADDRESS}:{gateway.ports['http']}/v1"
    with ExitStack() as stack:
        hog, honest = (
            stack.enter_context(openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE_S))
            for key in ("hog", "honest")
        )
        pool = stack.enter_context(ThreadPoolExecutor(4))
        asked = {"model": MODEL, "prompt": HOG, "max_tokens": 8, "stream": True}
        streams = [pool.submit(lambda: list(hog.completions.create(**asked, n=16))) for _ in range(3)]
        wait_for(48)
        at_ranks = [pair.prefill.hear() for _ in range(num_at_ranks)]
        answered = pool.submit(honest.completions.create, model=MODEL, prompt=HONEST, max_tokens=8)
        wait_for(49)
        with pytest.raises(openai.RateLimitError, match="room for 0 more"):
            hog.completions.create(**asked)
        answer(at_ranks[0])
        next_one = pair.prefill.hear()
        answer(next_one)
        done = answered.result(PATIENCE_S)
        for prompt in at_ranks[1:]:
            answer(prompt)
        for _ in range(48 - num_at_ranks):
            answer(pair.prefill.hear())
        ends = [event.choices[0].finish_reason for stream in streams for event in stream.result() if event.choices]

    assert next_one.prompt_ids == HONEST
    assert done.choices[0].finish_reason == "stop"
    assert ends.count("stop") == 48

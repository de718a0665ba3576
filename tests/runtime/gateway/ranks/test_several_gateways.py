"""Two real gateways share ranks with real lines (`GatewayLinks`) that compute nothing."""

import asyncio
from functools import partial

import openai
import pytest

from runtime.gateway.tenants.admission import num_ahead
from runtime.protocol.messages import Hello, Load, Prefill, State, Token
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.gateway_links import GatewayLinks
from tests.runtime.gateway.conftest import (
    KV_DIGEST,
    MAX_QUEUED_REQUESTS,
    MAX_REQUESTS,
    PATIENCE_S,
    UNIT_DIGEST,
    answers,
    wait_for,
)

NUM_TOKENS = 50
ASKED = {"model": "org/tiny", "prompt": [5, 6], "max_tokens": NUM_TOKENS, "stream": True}
HOSTS = ["127.0.0.41", "127.0.0.42"]


class Rank:
    """A mixed rank that sends a token every few milliseconds, the last one when it `may_end`."""

    def __init__(self, loop, port):
        self.num_requests, self.may_end = 0, True
        self._loop, self._tasks, self._answers = loop, [], {}
        hello = Hello("mixed-0", "mixed", 0, 1, "node-0", 4711, UNIT_DIGEST, KV_DIGEST, None, None)
        address = GatewayAddress(",".join(HOSTS), port)
        self.links = GatewayLinks(address, hello, self._receive, self._start)
        self.links.say_state(State("ready"))
        loop.call_soon_threadsafe(self._start, self.links.run)

    def stop(self):
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(PATIENCE_S)

    async def _stop(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work):
        self._tasks.append(self._loop.create_task(work()))
        return self._tasks[-1]

    def _receive(self, message):
        if isinstance(message, Prefill):
            self._answers[message.request_id] = self._start(partial(self._answer, message))
        else:
            self._answers[message.request_id].cancel()

    async def _answer(self, prompt):
        self._count(1, prompt.request_id)
        try:
            for index in range(NUM_TOKENS):
                is_last = index == NUM_TOKENS - 1
                while is_last and not self.may_end:
                    await asyncio.sleep(0.005)
                self.links.say(Token(prompt.request_id, index, 70 + index % 9, "length" if is_last else None))
                await asyncio.sleep(0.005)
        finally:
            self._count(-1)

    def _count(self, more, *arrived):
        self.num_requests += more
        num_waiting = max(self.num_requests - MAX_REQUESTS, 0)
        self.links.say_load(Load(self.num_requests, num_waiting, 0, 0, 64 * self.num_requests, list(arrived)))
        self.links.say_state(State("ready", self.num_requests / 100))  # which shows that the load has been read


def loaded(gateway):
    return gateway.ready_report()["units"][0]["ranks"][0]["loaded"]


@pytest.fixture(scope="module")
def two_gateways(start_gateway, loop):
    """Return ([two gateways at their own addresses], [a client of each], the rank)."""
    first = start_gateway(address=HOSTS[0], wait=False)
    gateways = [first, start_gateway(address=HOSTS[1], ports=first.ports, wait=False)]
    for gateway in gateways:
        wait_for(lambda: answers(gateway), "it answers")  # noqa: B023  # it is called at once
    rank = Rank(loop, first.ports["registry"])
    wait_for(lambda: all(gateway.ready_report()["ready"] for gateway in gateways), "both gateways have ranks")
    clients = [openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=60) for gateway in gateways]
    yield gateways, clients, rank
    rank.stop()
    for client in clients:
        client.close()


def test_a_gateway_knows_what_the_other_one_gave_a_rank(two_gateways, wait_until):
    """When one gateway has filled the rank, the other's requests wait, as many as may."""
    gateways, clients, rank = two_gateways
    rank.may_end = False
    most = MAX_REQUESTS + num_ahead(MAX_REQUESTS, MAX_QUEUED_REQUESTS)
    streams = [clients[0].completions.create(**ASKED) for _ in range(most)]
    wait_until(lambda: loaded(gateways[1]) == most / 100, "the other gateway has heard of all")
    with pytest.raises(openai.RateLimitError, match=f"room for {MAX_QUEUED_REQUESTS + MAX_REQUESTS - most} more"):
        clients[1].completions.create(**ASKED, n=2)
    rank.may_end = True

    assert [len(list(stream)) for stream in streams] == [NUM_TOKENS] * most
    wait_until(lambda: loaded(gateways[1]) == 0, "the other gateway has heard of their ends")
    assert len(list(clients[1].completions.create(**ASKED, n=2))) == 2 * NUM_TOKENS
    assert gateways[1].metric("tidemill_num_requests_rejected_total") == 2


def test_two_gateways_share_ranks_and_one_may_die(two_gateways):
    """When one gateway is killed, the other's stream goes on and new ones begin."""
    gateways, clients, rank = two_gateways
    rank.may_end = False
    lost, kept = (iter(client.completions.create(**ASKED)) for client in clients)
    begun = [next(stream) for stream in (lost, kept)]
    gateways[0].process.kill()
    with pytest.raises(openai.APIError):
        list(lost)
    rank.may_end = True
    rest, again = list(kept), list(clients[1].completions.create(**ASKED))

    assert [len(begun), len(rest), len(again)] == [2, NUM_TOKENS - 1, NUM_TOKENS]
    with pytest.raises(openai.APIConnectionError):
        clients[0].completions.create(**ASKED)

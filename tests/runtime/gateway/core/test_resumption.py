"""A request that loses its rank goes on at another with its tokens, or ends with the reason."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from runtime.gateway.core.calls import GenerationRequest
from runtime.gateway.core.resumption import MAX_RESUMPTIONS, ResumableRequest
from runtime.gateway.ranks.prefix_index import PrefixIndex
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize
from runtime.gateway.telemetry.metrics import GatewayMetrics, RequestClock
from runtime.gateway.tenants import resumption_queue
from runtime.gateway.tenants.resumption_queue import ResumptionQueue
from runtime.protocol.frames import FrameReader
from runtime.protocol.messages import Abort, Failed, FromGateway, Hello, Prefill, PrefixHit, Sampling, Token

ANSWER = [7, 3, 9, 4, 1, 8]
PROMPT = [5, 6]
NUM_TOKEN_IDS = 10


class Peer:
    """A mixed rank that the test plays. `messages` has what it got."""

    def __init__(self, number):
        transport = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=lambda: None)
        self._written = []
        hello = Hello(f"mixed-{number}", "mixed", 0, 1, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
        writer = SimpleNamespace(write=self._written.append, transport=transport)
        self.rank = Rank(hello, writer, RankLimits(16, 4096, 0), PrefixIndex(64))

    async def messages(self):
        """Return all messages that it got."""
        stream = asyncio.StreamReader()
        stream.feed_data(b"".join(self._written))
        stream.feed_eof()
        frames, messages = FrameReader(stream, FromGateway), []
        while (frame := await frames.read()) is not None:
            messages.append(frame[0])
        return messages

    async def asked(self):
        """Return the last prompt that it got."""
        return [message for message in await self.messages() if isinstance(message, Prefill)][-1]

    def say(self, prefill, index, finish_reason=None):
        self.rank.handle(Token(prefill.request_id, index, ANSWER[index], finish_reason))


class Call:
    """A request that begins at the first of some ranks, and goes on at the next each time it loses one."""

    def __init__(self, num_ranks, wait_s=5.0, weights=()):
        self.peers = [Peer(number) for number in range(num_ranks)]
        for peer, digest in zip(self.peers, weights, strict=False):
            peer.rank.loaded_digest = digest
        self.told = []
        self._next = iter(self.peers)
        registry = SimpleNamespace(room=lambda size: 9, choose_ranks=self._choose)
        self.measured = CollectorRegistry()
        metrics = GatewayMetrics(self.measured, "tiny")
        self.resumptions = ResumptionQueue(registry, metrics, wait_s)
        self.sizes = []
        request = GenerationRequest(PROMPT, Sampling(len(ANSWER), 1.0, 1.0, 42, []), ())
        self.request = ResumableRequest(
            request, RequestSize(2, 6), self.resumptions, RequestClock(metrics, 2), NUM_TOKEN_IDS, self.told.append
        )
        assert self.request.try_to_start()

    def _choose(self, size, names):
        self.sizes.append(size)
        peer = next(self._next, None)
        return None if peer is None else (peer.rank, peer.rank)

    async def asked(self, number):
        """Return the `number`-th rank's prompt, once the request has come there."""
        while not any(isinstance(message, Prefill) for message in await self.peers[number].messages()):
            await asyncio.sleep(0.001)
        return await self.peers[number].asked()

    @property
    def num_resumed(self):
        return self.count("resumed")

    def count(self, what):
        return self.measured.get_sample_value(f"tidemill_num_requests_{what}_total", {"model_name": "tiny"})


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(resumption_queue, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(resumption_queue, "RETRY_S", 0.001)


def run_in_time(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def list_ids(told):
    return [message.token_id for message in told]


@settings(max_examples=25)
@given(st.lists(st.integers(0, len(ANSWER) - 1), max_size=MAX_RESUMPTIONS))
def test_no_token_is_lost_or_repeated_wherever_ranks_are_lost(losses):
    """Each next rank gets the prompt with all tokens so far and the same sampling, and continues."""

    async def run():
        call = Call(len(losses) + 1)
        asked, num_said = await call.asked(0), 0
        for number, at in enumerate(sorted(losses)):
            for index in range(num_said, at):
                call.peers[number].say(asked, index)
            num_said = at
            call.peers[number].rank.fail_all("its machine burns")
            asked = await call.asked(number + 1)
            assert asked.prompt_ids == PROMPT
            assert asked.generated == ANSWER[:at]
            assert asked.sampling.seed == 42
            assert call.sizes[-1] == RequestSize(2 + at, 6 - at)
        for index in range(num_said, len(ANSWER)):
            call.peers[len(losses)].say(asked, index, "length" if index == len(ANSWER) - 1 else None)
        return call

    call = run_in_time(run())

    assert list_ids(call.told) == ANSWER
    assert call.num_resumed == len(losses)
    assert list(call.request.units) == [f"mixed-{number}" for number in range(len(losses) + 1)]


def test_hits_are_those_of_the_ranks_that_said_the_first_token():
    """The cached tokens are those of the rank that drew the first token."""

    async def run():
        call = Call(3)
        for number, num_hits in enumerate((2, 1, 2)):
            asked = await call.asked(number)
            call.peers[number].rank.handle(PrefixHit(asked.request_id, num_hits))
            if number == 1:
                call.peers[number].say(asked, 0)
            call.peers[number].rank.fail_all("its machine burns")
        return call

    assert run_in_time(run()).request.num_hit_tokens == 1


def test_what_a_lost_rank_says_late_is_nobodys():
    """A lost rank's late token is ignored, and the next rank's counts once."""

    async def run():
        call = Call(2)
        first = await call.asked(0)
        call.peers[0].say(first, 0)
        call.peers[0].rank.fail_all("given up")
        second = await call.asked(1)
        call.peers[0].say(first, 1)
        call.peers[1].say(second, 1)
        return call.told

    assert list_ids(run_in_time(run())) == ANSWER[:2]


def test_a_fault_of_the_request_itself_is_not_tried_again():
    """A request that a rank refuses is not sent to another."""

    async def run():
        call = Call(2)
        asked = await call.asked(0)
        call.peers[0].rank.handle(Failed(asked.request_id, "it could grow too long"))
        await asyncio.sleep(0.02)
        return call.told, await call.peers[1].messages()

    told, heard = run_in_time(run())

    assert [message.reason for message in told] == ["it could grow too long"]
    assert heard == []


def test_a_request_that_ends_rank_after_rank_is_given_up():
    """A request that loses rank after rank is given up, and counted as failed."""

    async def run():
        call = Call(MAX_RESUMPTIONS + 2)
        for number in range(MAX_RESUMPTIONS + 1):
            await call.asked(number)
            call.peers[number].rank.fail_all(f"loss {number}")
        return call.told, await call.peers[-1].messages(), call.count("failed")

    (failed,), heard, num_failed = run_in_time(run())

    assert failed.reason == f"loss {MAX_RESUMPTIONS}"
    assert heard == []
    assert num_failed == 1


def test_who_finds_no_rank_in_time_is_told_both_reasons():
    """A request that finds no rank within the launch file's time fails with both reasons."""

    async def run():
        call = Call(1, wait_s=0.02)
        await call.asked(0)
        call.peers[0].rank.fail_all("its machine burns")
        while not call.told:
            await asyncio.sleep(0.001)
        return call.told

    (failed,) = run_in_time(run())

    assert failed.reason == "its machine burns, and no ranks could go on with it within 0.02 s"


def test_a_caller_that_leaves_while_its_request_waits_takes_it_along():
    """If the caller leaves while its request waits, no rank gets it, and nothing has failed."""

    async def run():
        call = Call(1)
        await call.asked(0)
        call.peers[0].rank.fail_all("its machine burns")
        call.request.end()
        call.peers.append(Peer(1))
        await asyncio.sleep(0.02)
        return call.told, await call.peers[1].messages(), call.resumptions.room(), call.count("failed")

    assert run_in_time(run()) == ([], [], 9, 0)


def test_who_waits_takes_room_from_new_requests():
    """A request that waits for another rank goes before new requests."""

    async def run():
        call = Call(1)
        call.peers[0].rank.fail_all("its machine burns")
        waiting = call.resumptions.room()
        call.resumptions.close("the gateway is stopping")
        return waiting, call.resumptions.room(), call.told

    waiting, after, (failed,) = run_in_time(run())

    assert (waiting, after) == (8, 9)
    assert failed.reason == "its machine burns, and the gateway is stopping"


def test_a_rank_that_goes_on_and_on_fails_the_request():
    """A rank that sends more tokens than wanted fails the request."""

    async def run():
        call = Call(2)
        asked = await call.asked(0)
        call.peers[0].rank.handle(Token(asked.request_id, 10**6, ANSWER[0], None))
        return call.told, (await call.peers[0].messages())[-1]

    (failed,), last = run_in_time(run())

    assert failed.reason.startswith("rank 0 of unit mixed-0 said token 1000000, and ")
    assert isinstance(last, Abort)


def test_a_rank_that_skips_back_fails_the_request():
    """Two tokens with one number fail the request."""

    async def run():
        call = Call(2)
        asked = await call.asked(0)
        call.peers[0].say(asked, 0)
        call.peers[0].say(asked, 0)
        return call.told, (await call.peers[0].messages())[-1]

    (token, failed), last = run_in_time(run())

    assert token.token_id == ANSWER[0]
    assert failed.reason == "rank 0 of unit mixed-0 said token 0 twice"
    assert isinstance(last, Abort)


@pytest.mark.parametrize("num_said", [0, 2])
def test_an_answer_does_not_go_on_with_other_weights(num_said):
    """A request with tokens does not continue with other weights; one without may begin with them."""

    async def run():
        call = Call(2, weights=("old", "new"))
        asked = await call.asked(0)
        for index in range(num_said):
            call.peers[0].say(asked, index)
        call.peers[0].rank.fail_all("it was lost")
        if num_said == 0:
            return await call.asked(1)
        while not isinstance(call.told[-1], Failed):
            await asyncio.sleep(0.001)
        return call.told[-1].reason, await call.peers[1].messages(), call.num_resumed

    found = run_in_time(run())

    expected = ("the weights that it began with are served no more", [], 0)
    assert found == expected if num_said else found.prompt_ids == PROMPT

"""Ranks whose connection stands and who say nothing: processes that hang or are stopped."""

import asyncio

import pytest

from runtime.gateway.rank_load import RankLimits, RequestSize
from runtime.gateway.registry import Registry
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Failed, FromGateway, Hello, State

SILENT_S = 0.2
SIZE = RequestSize(5, 5)
HELLO = Hello("silent", "mixed", 0, 1, "node-0", 1, "sha256:unit", "sha256:kv", None, None)


def rank_that(behave, state="ready"):
    """What `behave(registry, write, stream)` returns, beside a rank in `state` that says only what `behave` writes."""

    async def run():
        registry = Registry("sha256:kv", RankLimits(4, 4096, 0), SILENT_S)
        async with await asyncio.start_server(registry.serve, "127.0.0.1", 0) as server:
            stream, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(encode_frame(HELLO) + encode_frame(State(state)))
            while not registry.units() or registry.units()[0].ranks[0].state != state:
                await asyncio.sleep(0.005)
            try:
                return await asyncio.wait_for(behave(registry, writer.write, stream), 10)
            finally:
                writer.close()
                await registry.close()

    return asyncio.run(run())


def test_a_rank_that_is_silent_fails_its_requests_and_gets_no_more():
    """After the stall timeout; and its connection is closed, so that a process that goes on calls again."""
    failed = []

    async def wait(registry, write, stream):
        rank, _ = registry.choose_ranks(SIZE)
        rank.subscribe("a", SIZE, lambda _, message: rank.unsubscribe("a") and failed.append(message))
        assert await FrameReader(stream, FromGateway).read() is None
        return registry.choose_ranks(SIZE)

    assert rank_that(wait) is None
    assert failed == [Failed("a", f"rank 0 of unit silent has said nothing for {SILENT_S:g} s")]


def test_a_rank_that_says_its_state_now_and_then_may_take_any_time():
    """A long answer behind many others brings no token for minutes."""

    async def go_on(registry, write, stream):
        for _ in range(6):
            await asyncio.sleep(SILENT_S / 4)
            write(encode_frame(State("ready")))
        return registry.choose_ranks(SIZE)

    assert rank_that(go_on) is not None


@pytest.mark.parametrize("state", ["loading", "joining"])
def test_a_rank_that_does_not_serve_yet_may_be_silent(state):
    """Its weights and its peers take as long as they do."""

    async def wait(registry, write, stream):
        await asyncio.sleep(2 * SILENT_S)
        return registry.units()[0].ranks[0].state

    assert rank_that(wait, state) == state

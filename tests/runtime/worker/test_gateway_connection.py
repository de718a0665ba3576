"""The rank's line to one gateway, which the test plays over a real socket."""

import asyncio

import pytest

from runtime.errors import RuntimeFailure
from runtime.protocol.frames import VERSION, FrameReader, encode_frame
from runtime.protocol.messages import Abort, FromRank, Hello, Load, Rejected, Renewed, State
from runtime.worker.gateway_connection import GatewayAddress, GatewayLink

HELLO = Hello("demo-prefill-0", "prefill", 0, 2, "node-0", 1, "sha256:unit", "sha256:kv", None, None)


async def run_with_gateway(behave, use):
    """Run `use(link, received)` against a server that treats each connection with `behave(frames, writer)`."""
    received: list = []

    async def serve(reader, writer):
        await behave(FrameReader(reader, FromRank), writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await asyncio.wait_for(
            use(GatewayLink(GatewayAddress("127.0.0.1", port), HELLO, received.append), received), 10
        )


def test_a_rank_says_hello_and_its_state_on_every_connection():
    """A rank sends Hello and its state on every new connection."""
    heard: list = []
    twice = asyncio.Event()

    async def behave(frames, writer):
        heard.append([(await frames.read())[0], (await frames.read())[0]])
        if len(heard) == 2:
            twice.set()

    async def use(link, received):
        link.say_state(State("loading", 0.4))
        running = asyncio.create_task(link.run())
        await twice.wait()
        running.cancel()

    asyncio.run(run_with_gateway(behave, use))

    assert heard == [[HELLO, State("loading", 0.4)]] * 2


class Writes:
    """A connection that keeps each write, and sends it at once."""

    def __init__(self):
        self.written, self.transport = [], self

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written.append(data)


def test_what_is_said_in_one_turn_is_written_at_once():
    """Messages of one turn are written together, whole and in order; later ones are written apart."""
    link, first, second = GatewayLink(GatewayAddress("127.0.0.1", 1), HELLO, None), Writes(), Writes()
    states = [State("loading", number / 8) for number in range(4)]

    async def talk():
        link.send(states[0])  # nobody listens
        link._writer = first
        for state in states[:3]:
            link.send(state)
        await asyncio.sleep(0)
        link.send(states[3])
        link._write()
        link._writer = second
        link.send(states[0])
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(talk())

    assert first.written == [b"".join(map(encode_frame, states[:3])), encode_frame(states[3])]
    assert second.written == [encode_frame(states[0])]


def test_what_no_gateway_says_to_this_rank_ends_the_line_and_not_the_rank():
    """A message that no gateway may send this rank ends the connection, and the rank calls again."""
    lines = []

    async def behave(frames, writer):
        lines.append(writer)
        writer.write(encode_frame(Renewed("ticket")))
        while await frames.read() is not None:
            pass

    async def use(link, received):
        running = asyncio.create_task(link.run())
        while len(lines) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        return received

    assert asyncio.run(run_with_gateway(behave, use)) == []


def test_a_rank_says_its_load_on_every_connection_with_no_request_that_is_new():
    """A rank sends its load on every new connection, without requests as new."""
    heard: list = []
    twice = asyncio.Event()

    async def behave(frames, writer):
        heard.append([(await frames.read())[0] for _ in range(3)][2])
        if len(heard) == 2:
            twice.set()

    async def use(link, received):
        link.say_load(Load(1, 0, 5, 15, 64, ["earlier"]))
        running = asyncio.create_task(link.run())
        await twice.wait()
        running.cancel()

    asyncio.run(run_with_gateway(behave, use))

    assert heard == [Load(1, 0, 5, 15, 64, [])] * 2


def test_a_call_that_nobody_answers_is_made_again(monkeypatch):
    """A call without an answer, as to a pod that is gone, is made again."""
    monkeypatch.setattr("runtime.worker.gateway_connection.CALL_TIMEOUT_S", 0.05)
    answered, calls, ours = asyncio.open_connection, [], []

    async def open_connection(*address):
        if asyncio.get_running_loop() not in ours:  # ranks of other tests may still call, from their own threads
            return await answered(*address)
        calls.append(address)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return await answered(*address)

    async def behave(frames, writer):
        writer.write(encode_frame(Abort("a")))
        await writer.drain()
        await frames.read()

    async def use(link, received):
        ours.append(asyncio.get_running_loop())
        monkeypatch.setattr(asyncio, "open_connection", open_connection)
        running = asyncio.create_task(link.run())
        while not received:
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(run_with_gateway(behave, use))

    assert len(calls) >= 2  # a busy machine may not answer the second one in time either


def test_what_the_gateway_says_reaches_the_rank():
    """The gateway's messages reach the rank in order."""

    async def behave(frames, writer):
        writer.write(encode_frame(Abort("a")) + encode_frame(Abort("b")))
        await writer.drain()
        await frames.read()

    async def use(link, received):
        running = asyncio.create_task(link.run())
        while len(received) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        return received

    assert asyncio.run(run_with_gateway(behave, use)) == [Abort("a"), Abort("b")]


def test_a_refused_rank_ends_with_the_gateways_reason():
    """A rejected rank ends with the gateway's reason, and does not call again."""

    async def behave(frames, writer):
        await frames.read()
        writer.write(encode_frame(Rejected("its kv_digest is another")))

    async def use(link, received):
        await link.run()

    with pytest.raises(RuntimeFailure, match="the gateway refuses this rank: its kv_digest is another"):
        asyncio.run(run_with_gateway(behave, use))


def test_a_gateway_of_another_version_is_called_again(monkeypatch, capsys):
    """The rank logs both versions once, and calls again until the gateway has been replaced."""
    monkeypatch.setattr("runtime.worker.gateway_connection.RETRY_OTHER_S", 0.01)
    num_calls = 0

    async def behave(frames, writer):
        nonlocal num_calls
        num_calls += 1
        await frames.read()
        right = encode_frame(Abort("a"))
        writer.write(right if num_calls > 2 else right[:4] + (VERSION + 1).to_bytes(2) + right[6:])
        await writer.drain()

    async def use(link, received):
        running = asyncio.create_task(link.run())
        while not received:
            await asyncio.sleep(0.01)
        running.cancel()
        return received

    assert asyncio.run(run_with_gateway(behave, use))[0] == Abort("a")
    assert capsys.readouterr().err == (
        f"tidemill: waiting for another gateway: the peer speaks wire version {VERSION + 1}, this runtime {VERSION}\n"
    )

"""Clients that are slow, silent, too many or no HTTP meet a server with short time-outs."""

import asyncio
import json
import logging
import socket
import struct
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from uvicorn.server import ServerState

from runtime.gateway.edge.client import run_while_connected
from runtime.gateway.edge.connections import STALLED_S, Connections, Wait, Waits, serve_clients
from runtime.gateway.edge.http1 import MAX_HEADERS, PIECE_BYTES, Http1, check_heads
from runtime.gateway.edge.input_turns import InputTurns
from runtime.protocol.sockets import listen
from tests.runtime.gateway.conftest import ADDRESS, PATIENCE_S

SHORT_S = 0.1
SHORT = Waits(SHORT_S, SHORT_S, SHORT_S, SHORT_S, SHORT_S)
GET = b"GET /well HTTP/1.1\r\nHost: x\r\n\r\n"
ENDLESS = GET.replace(b"well", b"endless")
OPEN_FILES = 64
written = []


async def well(request):
    return PlainTextResponse("well")


async def endless(request):
    async def parts():
        while True:
            await asyncio.sleep(0)  # whoever has left is told between the parts
            written.append(2**16)
            yield bytes(2**16)

    return StreamingResponse(parts())


async def size(request):
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def refused(request):
    return PlainTextResponse("too large", 413)


async def attended(request):
    await request.body()
    return PlainTextResponse(await run_while_connected(request, asyncio.sleep(0.001, "well")))


ROUTES = [
    Route("/attended", attended, methods=["POST"]),
    Route("/well", well),
    Route("/refused", refused, methods=["POST"]),
    Route("/endless", endless),
    Route("/size", size, methods=["POST"]),
]
APP = check_heads(Starlette(routes=ROUTES))


@pytest.fixture
def serve(monkeypatch):
    """Return the result of `behave(open)` beside a server; `open` gives (reader, writer)."""
    monkeypatch.setattr("runtime.gateway.edge.connections.SWEEP_S", SHORT_S / 4)

    def serve(behave, max_connections=4, waits=SHORT):
        async def run():
            listener = listen(ADDRESS, 0, "http")
            connections, state, turns = Connections(max_connections, waits), ServerState(), InputTurns()
            config = uvicorn.Config(APP, ws="none", lifespan="off", log_config=None, log_level="error")
            taking = asyncio.ensure_future(
                serve_clients(listener, connections, lambda: Http1(config, state, connections, turns))
            )
            port = listener.getsockname()[1]
            try:
                return await asyncio.wait_for(behave(lambda: asyncio.open_connection(ADDRESS, port)), PATIENCE_S)
            finally:
                taking.cancel()
                await asyncio.gather(*state.tasks)  # whoever still answers somebody who has left

        return asyncio.run(run())

    return serve


async def read_all(reader):
    """Return all bytes up to the end."""
    with suppress(ConnectionResetError):
        return await reader.read()
    return b"reset"


def read_refusal(answer):
    """Return the status and the error's code."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"", None),
        (b"GET /well HTTP/1.1\r\nHost: x\r\nA: ", (408, "request_timeout")),
        (b"GET /well HTTP/1.1\r\n" + b"A: x\r\n" * (MAX_HEADERS + 1) + b"Host: x\r\n\r\n", (431, "request_too_large")),
        (b"GET /well HTTP/1.1\r\nA: " + b"x" * 2 * PIECE_BYTES, (431, "request_too_large")),
        (b"mill\r\n\r\n", (400, "invalid_http")),
    ],
)
def test_a_head_that_does_not_end_is_given_up(serve, said, answer):
    """A client whose head does not end gets an error; one that sent nothing is closed silently."""

    async def say(open_connection):
        reader, writer = await open_connection()
        writer.write(said)
        return await read_all(reader)

    heard = serve(say)
    assert (read_refusal(heard) if heard else None) == answer


def test_a_client_that_sends_everything_first_sees_its_refusal(serve):
    """A client that sends its whole body first reads its refusal, and the rest of its body is dropped."""

    async def send(open_connection):
        reader, writer = await open_connection()
        writer.write(b"POST /refused HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 40000000\r\n\r\n")
        for _ in range(40):
            writer.write(bytes(10**6))
            await writer.drain()
        answer = await read_all(reader)
        writer.close()
        return answer

    answer = serve(send, waits=Waits())

    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.endswith(b"too large")


def test_a_body_of_two_lengths_ends_its_connection(serve):
    """A body with two lengths is a 400, and what follows on its connection is not answered."""

    async def say(open_connection):
        reader, writer = await open_connection()
        lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        writer.write(b"POST /size HTTP/1.1\r\nHost: x\r\n" + lengths + b"\r\n0\r\n\r\n" + GET)
        return await read_all(reader)

    heard = serve(say)
    assert read_refusal(heard) == (400, "invalid_http")
    assert heard.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "then",
    [
        b"",
        b"G",
        b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
        b"POST /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nno chunk\r\n",
    ],
)
def test_a_connection_ends_whatever_its_client_does_after_an_answer(serve, caplog, then):
    """A connection ends if its client is idle after an answer, or begins a head or body and stops."""

    async def say(open_connection):
        reader, writer = await open_connection()
        writer.write(GET)
        await reader.readuntil(b"well")
        writer.write(then)
        return await read_all(reader)

    serve(say)

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_body_in_the_smallest_chunks_is_read_and_others_are_answered_meanwhile(serve, monkeypatch):
    """A body in the smallest chunks is read in slices, and other clients are answered meanwhile."""
    monkeypatch.setattr("runtime.gateway.edge.input_turns.TURN_S", 0)
    head = b"POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    ended = []

    async def say(open_connection):
        (reader, writer), (other, other_writer) = await open_connection(), await open_connection()
        writer.write(head + b"1\r\nx\r\n" * PIECE_BYTES + b"0\r\n\r\n" + GET)
        other_writer.write(GET)
        await asyncio.gather(ends(other, b"well"), ends(reader, b"%d bytes" % PIECE_BYTES))
        await ends(reader, b"well")

    async def ends(reader, answer):
        await reader.readuntil(answer)
        ended.append(answer)

    serve(say, waits=Waits())

    assert ended == [b"well", b"%d bytes" % PIECE_BYTES, b"well"]


def test_a_client_that_closes_its_sending_half_has_left(serve):
    """A client that closes its sending half has left, and its answer is given up."""

    async def say(open_connection):
        reader, writer = await open_connection()
        writer.write(ENDLESS)
        await reader.readuntil(b"chunked")
        writer.write_eof()
        await read_all(reader)
        written.clear()
        await asyncio.sleep(SHORT_S)
        return len(written)

    assert serve(say, waits=Waits()) == 0


def test_requests_one_after_another_keep_their_connection(serve, monkeypatch):
    """Requests one after another keep their connection, and the time-out begins at each answer."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)  # no time passes while the machine does other things
    monkeypatch.setattr("runtime.gateway.edge.connections.time", clock)

    async def say(open_connection):
        reader, writer = await open_connection()
        for _ in range(6):
            clock.now += 2 / 3 * SHORT_S
            await asyncio.sleep(SHORT_S / 3)  # whoever waits is looked at meanwhile
            writer.write(GET + GET)
            await reader.readuntil(b"well")
            await reader.readuntil(b"well")

    serve(say)


def test_requests_that_are_sent_ahead_stay_with_their_client(serve, monkeypatch):
    """Requests that are sent ahead are all answered in order."""
    connections, sizes, add = [], [], Connections.add
    monkeypatch.setattr(Connections, "add", lambda self, new: connections.append(new) or add(self, new))

    async def say(open_connection):
        reader, writer = await open_connection()
        writer.write(b"POST /attended HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nmill" * 2**14)
        for _ in range(32):
            await reader.readuntil(b"well")
            sizes.append(len(connections[0].conn.trailing_data[0]))
        writer.transport.abort()

    serve(say, waits=Waits())

    assert max(sizes) < 4 * PIECE_BYTES


def test_a_client_that_does_not_read_is_given_up(serve, caplog):
    """A client that does not read is given up at a bound, and named in the log."""

    async def ask(open_connection):
        written.clear()
        reader, writer = await open_connection()
        reader._transport.pause_reading()
        writer.write(ENDLESS)
        peer = "{}:{}".format(*writer.get_extra_info("sockname"))
        while not caplog.messages:
            await asyncio.sleep(SHORT_S / 4)
        return peer

    peer = serve(ask)

    assert caplog.messages == [f"closed the connection of {peer}: it does not read its answer within {SHORT_S:g} s"]
    assert sum(written) < 2**24


def test_who_waits_longest_makes_room(serve):
    """The connection that has waited longest is closed for a new client."""

    async def fill(open_connection):
        said = (b"", b"GET ", b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        waiting = [await open_connection() for _ in said]
        for (_, writer), part in zip(waiting, said, strict=True):
            writer.write(part)
        new = [await open_connection() for _ in said]
        for _, writer in new:
            writer.write(GET)
        await asyncio.gather(*(read_all(reader) for reader, _ in waiting))
        return [await reader.readuntil(b"well") for reader, _ in new]

    answers = serve(fill, max_connections=3, waits=Waits())

    assert [answer.split()[1] for answer in answers] == [b"200"] * 3


def test_who_does_not_read_makes_room_last(monkeypatch):
    """Idle clients make room first, then stalled readers; pausing readers and clients that wait for us keep theirs."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("runtime.gateway.edge.connections.time", clock)
    connections, ended = Connections(4), []

    def add(name, wait):
        connections.add(Mock(peer=name, current_wait=lambda: wait, end=lambda wait: ended.append(name)))

    for name, wait in (("us", Wait.GATEWAY), ("stalled", Wait.READER), ("idle", Wait.NEXT)):
        add(name, wait)
    clock.now = 2 * STALLED_S
    add("pausing", Wait.READER)
    for name in ("probe", "other"):
        assert connections.make_room()
        add(name, Wait.GATEWAY)

    assert not connections.make_room()
    assert ended == ["idle", "stalled"]


def test_clients_that_come_together_are_no_more_than_there_may_be(serve, monkeypatch):
    """No more clients are kept than there may be, also of those that come together."""
    counts, add = [], Connections.add

    def counted(self, connection):
        add(self, connection)
        counts.append(len(self))

    async def come(open_connection):
        waiting = await asyncio.gather(*(open_connection() for _ in range(20)))
        ended = [asyncio.ensure_future(read_all(reader)) for reader, _ in waiting]
        while sum(future.done() for future in ended) < 17:
            await asyncio.sleep(SHORT_S / 4)
        return await asyncio.gather(*ended)

    monkeypatch.setattr(Connections, "add", counted)
    serve(come, max_connections=3, waits=Waits(head_s=2 * SHORT_S))

    assert max(counts) <= 3


def test_when_all_are_being_answered_a_client_is_refused(serve):
    """When all connections are being answered, a new client is told when to come again."""

    async def fill(open_connection):
        reader, writer = await open_connection()
        writer.write(ENDLESS)
        await reader.readuntil(b"chunked")
        late, late_writer = await open_connection()
        late_writer.write(GET)
        refused = await read_all(late)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await asyncio.sleep(SHORT_S)
        again, again_writer = await open_connection()
        again_writer.write(GET)
        return refused, await again.readuntil(b"well")

    refused, answer = serve(fill, max_connections=1, waits=Waits())

    assert read_refusal(refused) == (503, "overloaded")
    assert b"Retry-After: 1" in refused
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_thousand_slow_clients_hold_nobody_up(start_gateway):
    """With a thousand slow clients and 64 descriptors, others are answered at once."""
    gateway = start_gateway(open_files=OPEN_FILES)
    before = gateway.memory_mib()
    said = (b"", b"GET / HT", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n{")
    slow = []
    try:
        for number in range(1000):
            slow.append(socket.create_connection((ADDRESS, gateway.ports["http"]), timeout=PATIENCE_S))
            with suppress(OSError):
                slow[-1].sendall(said[number % len(said)])
        statuses = [gateway.get("/health")[0] for _ in range(5)]
    finally:
        for connection in slow:
            connection.close()

    assert statuses == [200] * 5
    assert len(gateway.log().splitlines()) < 110
    assert gateway.memory_mib() < before + 30
    assert len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir())) < OPEN_FILES


def test_callers_that_are_no_ranks_hold_no_rank_up(start_gateway, join, wait_until):
    """With 200 silent connections at the ranks' port and 64 descriptors, a rank still joins."""
    gateway = start_gateway(open_files=OPEN_FILES)
    idle = [socket.create_connection((ADDRESS, gateway.ports["registry"]), timeout=PATIENCE_S) for _ in range(200)]
    try:
        join(at=gateway, unit="late", phase="mixed")
        wait_until(lambda: gateway.rank_states("late") == ["loading"], "the rank has joined")
    finally:
        for connection in idle:
            connection.close()

    assert len(gateway.log().splitlines()) < 110

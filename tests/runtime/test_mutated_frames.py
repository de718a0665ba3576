"""Hundreds of mutated frames on each internal port end no process and no other request."""

import asyncio
import os
import queue
import socket
import threading
import urllib.request
import zlib
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from prometheus_client import CollectorRegistry, Counter

from runtime.expert_parallel.group import SoloGroup
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize
from runtime.gateway.ranks.registry import Registry
from runtime.kv.index import HASH_BYTES
from runtime.kv.receiver import KvReceiver
from runtime.launch import KvLayout
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import (
    Abort,
    Claim,
    Failed,
    FromLeader,
    Handover,
    Hello,
    Load,
    Logprobs,
    Moved,
    Offer,
    Piece,
    Place,
    Prefill,
    Sampling,
    State,
    Token,
)
from runtime.protocol.metrics_server import serve_metrics
from runtime.serving.decode import ArrivedRequest, DecodePhase
from runtime.serving.mixed import MixedPhase
from runtime.serving.prefill import PrefillPhase
from runtime.worker import gateway_connection
from runtime.worker.gateway_connection import GatewayAddress, GatewayLink
from runtime.worker.places import Roll
from tests.runtime.mutations import mutated_bytes, mutated_frames
from tests.runtime.one_rank import DECODE, NO_METRICS, Crossing, Limits
from tests.runtime.random_checkpoints import V3, write_checkpoint

HOST, PATIENCE_S = "127.0.0.1", 300  # 10 s of computing, on a machine that may do a lot besides
NUM_FRAMES, STEP_EVERY = 2000 if os.environ.get("CI") else 400, 50
LIMITS = Limits(max_requests=16, max_request_tokens=32, max_batch_tokens=64, kv_tokens=1024)
SAMPLING = Sampling(2, 1.0, 0.9, 3, [7], num_logprobs=2)
BYSTANDER = "bystander"
SIZE = RequestSize(5, 5)
MIXED_HELLO = Hello("mixed-0", "mixed", 0, 1, "node-0", 9, "sha256:unit", "sha256:kv", None, None)
DECODE_HELLO = Hello("decode-0", "decode", 0, 1, "node-0", 9, "sha256:unit", "sha256:kv", "127.0.0.1", 29600)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), V3)
    return Engine(EngineConfig(checkpoint, [list(range(16))] * 2, torch.float32, deterministic=True), SoloGroup())


@pytest.fixture(scope="module")
def launch(engine):
    bytes_per_token = 4 * engine.token_shape[0] * engine.token_shape[1]
    kv_cache = KvLayout(1, "fp32", bytes_per_token)
    return SimpleNamespace(limits=LIMITS, kv_digest="sha256:kv", kv_cache=kv_cache, deterministic=True)


class Rank:
    """A rank's phase. It keeps the messages about the bystander's request, and the event loop's unhandled errors."""

    def __init__(self, kind, engine, launch):
        self.tokens, self.others, self.escaped = [], 0, []
        self.inbox = queue.SimpleQueue()
        self._phase = kind(engine, launch, self, NO_METRICS)

    def say(self, message):
        encode_frame(message)
        if message.request_id != BYSTANDER:
            self.others += 1
        elif isinstance(message, Token):
            self.tokens.append(message.token_id)

    def say_load(self, load):
        """Do nothing: no load is sent here."""

    def open_transfer(self, host, port, offer, link, chain):
        return Crossing(
            offer, lambda handover, *_: self.say(Token(handover.request_id, 0, handover.generated[0], None))
        )

    def step(self):
        """Receive the messages that arrived, and compute all requests."""
        while not self.inbox.empty():
            self._phase.receive(self.inbox.get())
        while self._phase.has_work():
            self._phase.step()

    def answer(self, message):
        """Return the bystander's tokens."""
        self.tokens.clear()
        self._phase.receive(message)
        self.step()
        return list(self.tokens)


def watch(rank):
    asyncio.get_running_loop().set_exception_handler(lambda _, context: rank.escaped.append(context))


async def send_alone(port, data):
    """Send `data` on its own connection, to the end. Return the other end's answer."""
    reader, writer = await asyncio.open_connection(HOST, port)
    answer = await send(reader, writer, data)
    writer.close()
    return answer


async def send(reader, writer, data):
    """Send all data. Return the other end's bytes until it closes."""
    writer.write(data)
    with suppress(OSError):
        writer.write_eof()
        return await reader.read()
    return b""


def run_in_time(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE_S))


def test_a_decode_rank_survives_what_comes_to_its_kv_port(engine, launch):
    """Each frame at the KV port is refused or obeyed, and a handover beside them gets its usual tokens."""
    latents = torch.randn(engine.token_shape[0], 3, engine.token_shape[1])
    parts = kv_frames(latents)
    rank = Rank(DecodePhase, engine, launch)
    bystander = ArrivedRequest(
        Handover(BYSTANDER, [5, 6, 8], [4], Sampling(8, 1.0, 0.9, 3, [])),
        latents,
    )
    expected = rank.answer(bystander)

    async def run():
        watch(rank)
        receiver = KvReceiver(
            launch,
            engine.token_shape,
            96,
            lambda *arrival: rank.inbox.put(ArrivedRequest(*arrival)),
            holder=HoldsNothing(),
        )
        async with await asyncio.start_server(receiver.serve, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            for number in range(NUM_FRAMES):
                receiver.expect("mutated", "ticket")
                await send_alone(port, mutated_transfer(parts, number))
                if number % STEP_EVERY == 0:
                    rank.step()
                    assert rank.answer(bystander) == expected
            receiver.expect("mutated", "ticket")
            return await send_alone(port, whole(parts))

    answered = run_in_time(run())
    rank.step()

    assert b"accepted" in answered
    assert rank.answer(bystander) == expected
    assert (rank.escaped, rank.others > NUM_FRAMES // 20) == ([], True)


class HoldsNothing:
    """Stands in for a step loop that has no blocks."""

    def hold(self, prefix, answer):
        answer(0)

    def release(self, prefix):
        """Do nothing: nothing is held."""


def kv_frames(latents):
    """Return the messages of one transfer, each with its payload."""
    offer = Offer("mutated", "ticket", "sha256:kv", list(latents.shape), "fp32")
    payloads = [layer.numpy().tobytes() for layer in latents]
    pieces = [(Piece(layer, 0, 3, zlib.crc32(each)), each) for layer, each in enumerate(payloads)]
    return [(offer, bytes(HASH_BYTES)), *pieces, (Handover("mutated", [5, 6, 8], [4], SAMPLING), b"")]


def whole(parts):
    return b"".join(encode_frame(message, len(payload)) + payload for message, payload in parts)


def mutated_transfer(parts, number):
    """Return a transfer with one mutated frame, most often its handover."""
    place = number % (2 * len(parts))
    place = min(place, len(parts) - 1)
    (mutated,) = mutated_frames(*parts[place], 1, seed=number)
    return whole(parts[:place]) + mutated + whole(parts[place + 1 :])


@pytest.mark.parametrize("kind", [MixedPhase, PrefillPhase])
def test_a_rank_survives_what_comes_from_its_gateway(engine, launch, monkeypatch, kind):
    """After a broken line the rank calls again, and a request beside the mutated ones goes on."""
    monkeypatch.setattr(gateway_connection, "RETRY_S", 0)
    monkeypatch.setattr(gateway_connection, "RETRY_OTHER_S", 0)
    monkeypatch.setattr(gateway_connection, "CALL_TIMEOUT_S", PATIENCE_S)  # steps hold up this loop on a busy machine
    rank = Rank(kind, engine, launch)
    bystander = Prefill(BYSTANDER, [5, 6, 8], Sampling(8, 1.0, 0.9, 3, []), *DECODE)
    expected = rank.answer(bystander)
    frames = [
        *mutated_frames(Prefill("mutated", [5, 6, 8], SAMPLING, *DECODE), b"", NUM_FRAMES * 9 // 10, seed=2),
        *mutated_frames(Abort("mutated"), b"", NUM_FRAMES // 10, seed=3),
    ]

    async def run():
        watch(rank)
        pending, done = iter(frames), asyncio.Event()

        async def gateway(reader, writer):
            """Send one frame on each connection, until none is left."""
            await reader.readuntil(b'"loading"')
            data = next(pending, None)
            if data is None:
                done.set()
            else:
                await send(reader, writer, data)
            writer.close()

        async with await asyncio.start_server(gateway, HOST, 0) as server:
            link = GatewayLink(GatewayAddress(HOST, server.sockets[0].getsockname()[1]), MIXED_HELLO, rank.inbox.put)
            running = asyncio.ensure_future(link.run())
            while not done.is_set():
                await asyncio.sleep(0.05)
                assert not running.done()
                rank.step()
                assert rank.answer(bystander) == expected
            assert rank.escaped == []  # before what still runs is cancelled, which this loop complains about
            running.cancel()

    run_in_time(run())

    assert rank.answer(bystander) == expected
    assert rank.others > NUM_FRAMES // 20


def test_the_gateway_survives_what_comes_to_its_registry(launch):
    """A mutated frame costs its sender's connection at most, and a rank beside it stays ready."""
    heard, rank = [], SimpleNamespace(escaped=[])
    messages = [
        DECODE_HELLO,
        State("ready", 0.5),
        Load(2, 1, 300, 45150, 384, ["a", "b"]),
        Token("mutated", 0, 5, None, Logprobs(-0.5, [(1, -0.5)])),
        Failed("mutated", "no reason"),
        Moved("ticket"),
    ]

    async def run():
        watch(rank)
        registry = Registry("sha256:kv", RankLimits(16, 4096, 0), 150.0)
        async with await asyncio.start_server(registry.serve, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection(HOST, port)
            good = Hello("good", "mixed", 0, 1, "node-0", 7, "sha256:unit", "sha256:kv", None, None)
            writer.write(encode_frame(good) + encode_frame(State("ready")))
            while registry.choose_ranks(SIZE) is None:
                await asyncio.sleep(0.01)
            listener, _ = registry.choose_ranks(SIZE)
            listener.subscribe(BYSTANDER, SIZE, lambda _, message: heard.append(message))
            for number, message in enumerate(messages):
                hello = b"" if number == 0 else encode_frame(DECODE_HELLO)
                for data in mutated_frames(message, b"", NUM_FRAMES // len(messages), seed=number):
                    await send_alone(port, hello + data)
            writer.write(encode_frame(Token(BYSTANDER, 0, 5, None)))
            while not heard:
                await asyncio.sleep(0.01)
            listener.unsubscribe(BYSTANDER)
            units = registry.report()["units"]
            assert [unit["ranks"][0]["state"] for unit in units if unit["unit"] == "good"] == ["ready"]
            writer.close()
            await registry.close()

    run_in_time(run())

    assert heard == [Token(BYSTANDER, 0, 5, None)]
    assert rank.escaped == []


def test_a_leader_survives_what_comes_to_its_port_for_places():
    """A node keeps its place, and the last place stays free for its planned node."""
    launch = SimpleNamespace(unit="decode-0", unit_digest="sha256:unit", places=["node-0", "node-1"], spares=["node-7"])
    rank = SimpleNamespace(escaped=[])

    async def run():
        watch(rank)
        roll = Roll(launch)
        roll.is_leaders = True
        async with await asyncio.start_server(roll.serve, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection(HOST, port)
            frames = FrameReader(reader, FromLeader)
            writer.write(encode_frame(Claim("sha256:unit", "node-1", "10.0.0.1")))
            assert (await frames.read())[0] == Place(1)
            for data in mutated_frames(Claim("sha256:unit", "node-7", "10.0.0.7"), b"", NUM_FRAMES, seed=5):
                await send_alone(port, data)
            answer = await send_alone(port, encode_frame(Claim("sha256:unit", "node-0", "10.0.0.2")))
            writer.write_eof()
            assert await frames.read() is None  # nothing else was said to it
            return answer

    assert run_in_time(run()) == encode_frame(Place(0))
    assert rank.escaped == []


def test_a_metrics_port_survives_what_comes_to_it(monkeypatch):
    """Requests that are not quite HTTP are answered or dropped, and a dashboard reads on."""
    escaped, registry = [], CollectorRegistry()
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    Counter("steps", "Steps taken.", registry=registry).inc(3)
    spoken = [
        b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: text/plain\r\n\r\n",
        b"GET /readyz HTTP/1.0\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    ]
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    num_threads = threading.active_count()

    async def run():
        for data in mutated_bytes(spoken, NUM_FRAMES, seed=4):
            await send_alone(port, data)

    with serve_metrics(registry, HOST, port):
        run_in_time(run())
        text = urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10).read()

    assert b"steps_total 3.0" in text
    assert escaped == []
    assert threading.active_count() <= num_threads + 1

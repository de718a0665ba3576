"""Latent KV over real sockets: it arrives bit for bit, every byte is counted, and what does not fit is refused."""

import asyncio
import itertools
import math
import os
import socket
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.errors import RuntimeFailure
from runtime.kernels.precision import DTYPES
from runtime.kv import transfer as kv_transfer
from runtime.kv.transfer import KvReceiver, KvSender, check_layout
from runtime.launch import KvLayout, read_unit_launch
from runtime.protocol import frames
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Accepted, Handover, HandoverReply, Refused, Sampling
from runtime.worker.rank_metrics import RankMetrics
from tests.runtime.launch_documents import UNIT, sealed, write

HOST = "127.0.0.1"
TOKEN_SHAPE = (3, 8)  # num_layers, latent_dim: 96 bytes a token in FP32, as the launch file says
BYTES_PER_TOKEN = {"fp32": 96, "bf16": 48}
VOCAB_SIZE = 50
MAX_REQUEST_TOKENS = 20
numbers = itertools.count()


@pytest.fixture(scope="session")
def launches(tmp_path_factory):
    """dtype -> a launch file with KV of that type."""

    def read(dtype):
        kv = {"kv_cache__dtype": dtype, "kv_cache__bytes_per_token": BYTES_PER_TOKEN[dtype]}
        return read_unit_launch(write(tmp_path_factory.mktemp("launch"), sealed(UNIT, precision=dtype, **kv)))

    return {dtype: read(dtype) for dtype in BYTES_PER_TOKEN}


def make_handover(launch, num_tokens, /, **changes):
    values = {
        "request_id": f"request-{next(numbers)}",
        "kv_digest": launch.kv_digest,
        "prompt_ids": list(range(num_tokens)),
        "shape": [TOKEN_SHAPE[0], num_tokens, TOKEN_SHAPE[1]],
        "dtype": launch.kv_cache.dtype,
        "generated": [4],
        "sampling": Sampling(max_tokens=5, temperature=0.0, top_p=1.0, seed=0, stop_ids=[1]),
    }
    return Handover(**values | changes)


def make_latents(num_tokens, dtype="fp32"):
    return torch.randn(TOKEN_SHAPE[0], num_tokens, TOKEN_SHAPE[1]).to(DTYPES[dtype])


@asynccontextmanager
async def listening(serve):
    """(port, connections so far) of a server on loopback."""
    connections = []

    async def count(stream, writer):
        connections.append(writer)
        await serve(stream, writer)

    async with await asyncio.start_server(count, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1], connections
        for writer in connections:
            writer.close()


def with_pair(launch, use):
    """Run `use(pair)` against a receiver and a sender; what was accepted is in `pair.taken`."""

    async def run():
        taken = []
        receiver = KvReceiver(launch, TOKEN_SHAPE, VOCAB_SIZE, lambda *handover: taken.append(handover))
        metrics = RankMetrics(launch, 0)
        async with listening(receiver.serve) as (port, connections):
            pair = SimpleNamespace(
                sender=KvSender(metrics), port=port, taken=taken, connections=connections, metrics=metrics
            )
            await use(pair)
            with suppress(AttributeError):
                for connection in pair.sender._connections.values():
                    connection._writer.close()
        return pair

    return asyncio.run(asyncio.wait_for(run(), 30))


def with_server(launch, serve, use):
    """Run `use(sender, port)` against a decode rank that the test plays."""

    async def run():
        async with listening(serve) as (port, _):
            return await use(KvSender(RankMetrics(launch, 0)), port)

    return asyncio.run(asyncio.wait_for(run(), 30))


def counted(metrics, part):
    labels = {"model_name": "org/small", "unit": "demo-decode-0", "rank": "0"}
    if part == "handovers":
        return metrics.registry.get_sample_value("tidemill_kv_transfer_seconds_count", labels)
    return metrics.registry.get_sample_value("tidemill_kv_transfer_bytes_total", labels | {"part": part})


async def failure_of(sending):
    with pytest.raises(RuntimeFailure) as error:
        await sending
    sentence = str(error.value)
    assert "\n" not in sentence
    assert not sentence.endswith(": ")
    return sentence


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("num_tokens", [1, 15])
def test_latents_arrive_bit_for_bit(launches, dtype, num_tokens):
    """Also NaN, infinities, negative zero; the handover comes with them, unchanged."""
    handover, latents = make_handover(launches[dtype], num_tokens), make_latents(num_tokens, dtype)
    latents[0, 0, :4] = torch.tensor([math.nan, math.inf, -0.0, 1e-40])

    async def use(pair):
        await pair.sender.send(HOST, pair.port, handover, latents)

    ((taken, received),) = with_pair(launches[dtype], use).taken

    assert taken == handover
    assert (received.dtype, received.shape) == (latents.dtype, latents.shape)
    assert torch.equal(received.view(torch.uint8), latents.view(torch.uint8))


def test_a_slice_of_a_batch_arrives_as_its_own(launches):
    """Prefill hands over views into all prompts' latents, which do not lie together in memory."""
    batch = make_latents(12)
    part = batch[:, 3:8]

    async def use(pair):
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 5), part)

    ((_, received),) = with_pair(launches["fp32"], use).taken

    assert not part.is_contiguous()
    assert torch.equal(received, part)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_byte_is_counted(launches, dtype):
    """Payload is tokens times bytes per token; framing is the rest of what was written, to the byte."""
    handovers = [make_handover(launches[dtype], num_tokens) for num_tokens in (1, 7, 15)]

    async def use(pair):
        for handover in handovers:
            await pair.sender.send(HOST, pair.port, handover, make_latents(len(handover.prompt_ids), dtype))

    metrics = with_pair(launches[dtype], use).metrics

    assert counted(metrics, "payload") == (1 + 7 + 15) * BYTES_PER_TOKEN[dtype]
    assert counted(metrics, "framing") == sum(len(encode_frame(handover, 1)) for handover in handovers)
    assert counted(metrics, "handovers") == 3


def test_what_is_counted_is_what_goes_over_the_wire(launches):
    """A server that only counts bytes sees payload plus framing."""
    handover, seen = make_handover(launches["fp32"], 9), []
    size = len(encode_frame(handover, 9 * 96)) + 9 * 96

    async def serve(stream, writer):
        seen.append(await stream.readexactly(size))
        writer.write(encode_frame(Accepted(handover.request_id)))
        seen.append(await stream.read(1))  # nothing more comes before the sender goes

    async def use(sender, port):
        await sender.send(HOST, port, handover, make_latents(9))
        next(iter(sender._connections.values()))._writer.close()
        await asyncio.sleep(0.05)

    with_server(launches["fp32"], serve, use)

    assert [len(part) for part in seen] == [size, 0]


def test_a_connection_is_kept(launches):
    """Requests to one decode rank share one connection, also when they are sent at the same time."""

    async def use(pair):
        handovers = [make_handover(launches["fp32"], 4) for _ in range(5)]
        await pair.sender.send(HOST, pair.port, handovers[0], make_latents(4))
        await asyncio.gather(
            *(pair.sender.send(HOST, pair.port, handover, make_latents(4)) for handover in handovers[1:])
        )

    pair = with_pair(launches["fp32"], use)

    assert (len(pair.taken), len(pair.connections)) == (5, 1)


REFUSALS = {
    "another digest": (
        {"kv_digest": "sha256:other"},
        "its KV is of another plan than this unit's, or of other weights than this unit loaded",
    ),
    "another type": ({"dtype": "bf16"}, "its KV is bf16 [3, 4, 8], not fp32 [3, 4, 8]"),
    "another depth": ({"shape": [2, 4, 8]}, "its KV is fp32 [2, 4, 8], not fp32 [3, 4, 8]"),
    "another length": ({"prompt_ids": [1] * 5}, "its KV is fp32 [3, 4, 8], not fp32 [3, 5, 8]"),
    "a flat shape": ({"shape": [96]}, "its KV is fp32 [96]"),
    "another size": ({"prompt_ids": [1] * 5, "shape": [3, 5, 8]}, "its KV has 384 bytes for 5 tokens"),
    "no tokens": ({"prompt_ids": [], "shape": [3, 0, 8]}, "its prompt has 0 tokens"),
    "too long an answer": (
        {"sampling": Sampling(max_tokens=17, temperature=0.0, top_p=1.0, seed=0, stop_ids=[])},
        "it could grow to 21 tokens, this unit takes 20",
    ),
    "an id outside the vocabulary": ({"prompt_ids": [1, 2, 3, 50]}, "a token id outside the vocabulary of 50"),
    "a negative id": ({"prompt_ids": [1, 2, 3, -1]}, "a token id outside the vocabulary of 50"),
    "a first token outside it": ({"generated": [2**40]}, "a token id outside the vocabulary of 50"),
    "no first token": ({"generated": []}, "it comes without its first token"),
    "more tokens than asked for": ({"generated": [4] * 5}, "it has 5 tokens already of the 5 that it asks for"),
    "a penalty that overflows": (
        {"sampling": Sampling(5, 1.0, 1.0, 0, [], repetition_penalty=1e-40)},
        "its sampling is out of range",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_is_refused_with_its_reason(launches, changes, reason):
    """The sender says it in one sentence, nothing is taken or counted, and the connection goes on."""
    sentences = []

    async def use(pair):
        latents = make_latents(4)
        wrong = make_handover(launches["fp32"], 4, **changes)
        sentences.append(await failure_of(pair.sender.send(HOST, pair.port, wrong, latents)))
        assert counted(pair.metrics, "payload") == 0
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), latents)

    pair = with_pair(launches["fp32"], use)

    assert sentences[0].startswith("the decode rank refused it: ")
    assert reason in sentences[0]
    assert (len(pair.taken), len(pair.connections)) == (1, 1)


def test_a_refusal_names_no_digest(launches):
    """Whoever guesses is told nothing about what this unit expects, and a client of the gateway nothing at all."""
    launch, sentences = launches["fp32"], []

    async def use(pair):
        stranger = make_handover(launch, 4, kv_digest="sha256:guess", shape=[1], prompt_ids=[-1])
        sentences.append(await failure_of(pair.sender.send(HOST, pair.port, stranger, make_latents(4))))

    with_pair(launch, use)

    assert sentences[0].endswith(
        "its KV is of another plan than this unit's, or of other weights than this unit loaded"
    )
    assert "sha256" not in sentences[0]


@pytest.mark.parametrize(
    ("held", "bounds"), [(3, {"MAX_QUEUED": 1}), (2, {"HELD_CACHES": 0, "HELD_BYTES": 2 * 4 * 96})]
)
def test_what_is_held_outside_the_cache_is_bounded(launches, monkeypatch, held, bounds):
    """In number (here 2 in the cache's place and 1 queued) and in bytes; what leaves makes room for the next."""
    for name, value in bounds.items():
        monkeypatch.setattr(kv_transfer, name, value)
    sentences = []

    async def use(pair):
        async def send():
            await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))

        for _ in range(held):
            await send()
        sentences.append(await failure_of(send()))
        pair.taken.pop()
        await send()

    pair = with_pair(launches["fp32"], use)

    assert sentences[0].endswith("refused it: this rank holds as much KV outside its cache as it may")
    assert (len(pair.taken), len(pair.connections)) == (held, 1)


def test_a_handover_that_stops_half_way_gives_its_room_back(launches, monkeypatch):
    """The connection is closed when a frame is not whole in time, and the next handover finds room."""
    monkeypatch.setattr(frames, "FRAME_TIMEOUT_S", 0.1)
    monkeypatch.setattr(kv_transfer, "HELD_CACHES", 0)
    monkeypatch.setattr(kv_transfer, "HELD_BYTES", 4 * 96)

    async def use(pair):
        reader, writer = await asyncio.open_connection(HOST, pair.port)
        writer.write(encode_frame(make_handover(launches["fp32"], 4), 4 * 96) + b"half of it")
        assert await reader.read() == b""
        writer.close()
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))

    assert len(with_pair(launches["fp32"], use).taken) == 1


def test_connections_are_bounded(launches, monkeypatch):
    """One too many is closed at once; the others go on."""
    monkeypatch.setattr(kv_transfer, "MAX_CONNECTIONS", 1)

    async def use(pair):
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))
        reader, writer = await asyncio.open_connection(HOST, pair.port)
        assert await reader.read() == b""
        writer.close()
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))

    assert len(with_pair(launches["fp32"], use).taken) == 2


def test_only_a_sender_that_knows_the_digest_may_be_silent(launches, monkeypatch):
    """A connection without a handover, and one with a stranger's, are closed; a sender's stays for its next one."""
    monkeypatch.setattr(kv_transfer, "FIRST_TIMEOUT_S", 0.1)

    async def use(pair):
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))
        for said in (b"", encode_frame(make_handover(launches["fp32"], 4, kv_digest="sha256:guess"))):
            reader, writer = await asyncio.open_connection(HOST, pair.port)
            writer.write(said)
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))

    pair = with_pair(launches["fp32"], use)

    assert (len(pair.taken), len(pair.connections)) == (2, 3)


def test_a_peer_that_vanishes_is_noticed_at_both_ends(launches):
    """The kernel asks after it, at the sender's and at the receiver's socket."""
    asked = []

    async def use(pair):
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))
        (sending,) = pair.sender._connections.values()
        sockets = [writer.get_extra_info("socket") for writer in (sending._writer, *pair.connections)]
        asked.extend(each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in sockets)

    with_pair(launches["fp32"], use)

    assert asked == [1, 1]


def test_an_unwanted_handover_leaves_the_line_to_the_next(launches):
    """One is cancelled half sent, one while it waits for its turn; a third arrives whole, on a line of its own."""
    whole = []

    async def serve(stream, writer):
        """Read nothing on the first line, and all on others."""
        if whole:
            reader = FrameReader(stream, Handover, 10**9)
            handover, _ = await reader.read()
            whole.append(handover.request_id)
            writer.write(encode_frame(Accepted(handover.request_id)))
        else:
            whole.append("none of the first")
            await asyncio.sleep(20)

    async def use(sender, port):
        big = torch.zeros(TOKEN_SHAPE[0], 500_000, TOKEN_SHAPE[1])
        unwanted = [
            asyncio.ensure_future(sender.send(HOST, port, make_handover(launches["fp32"], 4), latents))
            for latents in (big, make_latents(4))
        ]
        await asyncio.sleep(0.2)
        for sending in reversed(unwanted):
            sending.cancel()
        third = make_handover(launches["fp32"], 4)
        await sender.send(HOST, port, third, make_latents(4))
        assert whole == ["none of the first", third.request_id]
        assert [sending.cancelled() for sending in unwanted] == [True, True]

    with_server(launches["fp32"], serve, use)


def test_no_tokens_and_no_bytes_are_refused(launches):
    """A handover that is empty and consistent is still no request."""
    sentences = []

    async def use(pair):
        nothing = make_handover(launches["fp32"], 0)
        sentences.append(await failure_of(pair.sender.send(HOST, pair.port, nothing, make_latents(0))))

    assert with_pair(launches["fp32"], use).taken == []
    assert "its prompt has 0 tokens" in sentences[0]


def test_oversize_is_cut_off(launches):
    """More KV than the longest request may have is not even read; the sender says that the line was closed."""
    sentences = []

    async def use(pair):
        handover = make_handover(launches["fp32"], 5000)
        sentences.append(await failure_of(pair.sender.send(HOST, pair.port, handover, make_latents(5000))))
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 4), make_latents(4))

    pair = with_pair(launches["fp32"], use)

    assert sentences[0].startswith("its KV could not be sent to the decode rank: ")
    assert (len(pair.taken), len(pair.connections)) == (1, 2)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=200) | st.binary(max_size=100).map(lambda data: b"TDML\x00\x01\x00\x00" + data))
def test_garbage_does_not_crash_the_receiver(launches, garbage):
    """Whatever comes first on a connection, the next one is served, and nothing escapes into the event loop."""
    escaped = []

    async def use(pair):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: escaped.append(context))
        _, writer = await asyncio.open_connection(HOST, pair.port)
        writer.write(garbage)
        await writer.drain()
        writer.close()
        await pair.sender.send(HOST, pair.port, make_handover(launches["fp32"], 2), make_latents(2))

    assert len(with_pair(launches["fp32"], use).taken) == 1
    assert escaped == []


def test_nobody_there_is_one_sentence(launches, free_port, capsys):
    """The decode rank is not started, or already gone. Its address is for the log: clients read the sentence."""
    port = free_port()
    sender = KvSender(RankMetrics(launches["fp32"], 0))

    sentence = asyncio.run(failure_of(sender.send(HOST, port, make_handover(launches["fp32"], 2), make_latents(2))))

    assert sentence == "its KV could not be sent to the decode rank: connection refused"
    assert f"tidemill: KV could not be sent to {HOST}:{port}: " in capsys.readouterr().err


async def hang_up(stream, writer):
    await stream.read(30)
    writer.close()


async def answer_garbage(stream, writer):
    await stream.read(30)
    writer.write(os.urandom(64))


async def answer_in_another_version(stream, writer):
    await stream.read(30)
    writer.write(b"TDML\x00\x09" + bytes(14))


@pytest.mark.parametrize("serve", [hang_up, answer_garbage, answer_in_another_version])
def test_a_broken_answer_is_one_sentence(launches, serve):
    """The peer hangs up, talks nonsense or another version."""
    handover = make_handover(launches["fp32"], 2)

    async def use(sender, port):
        return await failure_of(sender.send(HOST, port, handover, make_latents(2)))

    assert "its KV could not be sent" in with_server(launches["fp32"], serve, use)


async def say_nothing(stream, writer):
    await stream.read(-1)


def test_no_answer_is_one_sentence(launches, monkeypatch):
    """A decode rank that hangs does not hang the prefill rank."""
    monkeypatch.setattr(kv_transfer, "REPLY_TIMEOUT_S", 0.1)
    handover = make_handover(launches["fp32"], 2)

    async def use(sender, port):
        return await failure_of(sender.send(HOST, port, handover, make_latents(2)))

    assert with_server(launches["fp32"], say_nothing, use).endswith("no answer")


def test_a_late_answer_is_not_another_requests(launches, monkeypatch):
    """A request that waits behind one without answer gets its own answer, not the other's that comes too late."""
    monkeypatch.setattr(kv_transfer, "REPLY_TIMEOUT_S", 0.3)
    first, second = (make_handover(launches["fp32"], 2) for _ in range(2))

    async def serve(stream, writer):
        """Accept the first too late, refuse the second."""
        reader = FrameReader(stream, Handover, 10_000)
        while (frame := await reader.read()) is not None:
            if frame[0] == first:
                await asyncio.sleep(0.4)
                reply: HandoverReply = Accepted(first.request_id)
            else:
                reply = Refused(second.request_id, "it is full")
            writer.write(encode_frame(reply))

    async def use(sender, port):
        sending = [sender.send(HOST, port, handover, make_latents(2)) for handover in (first, second)]
        return await asyncio.gather(*sending, return_exceptions=True)

    one, other = map(str, with_server(launches["fp32"], serve, use))

    assert one.endswith("no answer")
    assert other.endswith("refused it: it is full")


def test_a_launch_file_with_other_kv_bytes_is_refused():
    """What the plan counts a token is what the model needs, or the rank does not start."""
    check_layout(KvLayout(1, "bf16", 48), TOKEN_SHAPE)
    with pytest.raises(RuntimeFailure, match="counts 48 bytes of KV a token, the model needs 96"):
        check_layout(KvLayout(1, "fp32", 48), TOKEN_SHAPE)

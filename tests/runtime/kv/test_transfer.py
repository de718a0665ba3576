"""Latent KV over real sockets: it arrives bit for bit, every byte is counted, and what does not fit is refused."""

import asyncio
import itertools
import math
import os
import socket
import threading
import zlib
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from runtime.errors import RuntimeFailure
from runtime.kernels.device import HostLink
from runtime.kernels.precision import DTYPES
from runtime.kv import host_memory
from runtime.kv import receiver as kv_receiver
from runtime.kv import sender as kv_sender
from runtime.kv import tickets as kv_tickets
from runtime.kv.host_memory import Staging, max_held_bytes, staged_bytes
from runtime.kv.receiver import KvReceiver, check_layout
from runtime.kv.sender import KvSender, Outgoing
from runtime.launch import KvLayout, read_unit_launch
from runtime.protocol import frames
from runtime.protocol.frames import FRAME_PREFIX_BYTES, STRANGER_HEADER_BYTES, FrameReader, encode_frame
from runtime.protocol.messages import Accepted, FromDecode, FromPrefill, Handover, Offer, Piece, Proceed, Sampling
from runtime.worker.rank_metrics import RankMetrics
from tests.runtime.launch_documents import UNIT, seal, write

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
        return read_unit_launch(write(tmp_path_factory.mktemp("launch"), seal(UNIT, precision=dtype, **kv)))

    return {dtype: read(dtype) for dtype in BYTES_PER_TOKEN}


@dataclass(frozen=True)
class Transfer:
    """All that a prefill rank says of one request. `latents` are sent as they are, whatever the offer says."""

    offer: Offer
    latents: Tensor
    handover: Handover

    def frames(self):
        """What is written for it, each layer in one piece."""
        parts = [(self.offer, b"")]
        for layer, latent_TC in enumerate(self.latents):
            payload = latent_TC.contiguous().view(torch.uint8).numpy().tobytes()
            parts.append((Piece(layer, 0, len(latent_TC), zlib.crc32(payload)), payload))
        return [*parts, (self.handover, b"")]

    def data(self):
        return b"".join(encode_frame(message, len(payload)) + payload for message, payload in self.frames())

    def outgoing(self):
        """All of it, computed and not sent."""
        outgoing = Outgoing(self.offer)
        for layer, latent_TC in enumerate(self.latents):
            outgoing.put(layer, 0, latent_TC)
        outgoing.finish(self.handover)
        return outgoing


def transfer(launch, num_tokens, latents=None, /, **changes):
    """A request with `num_tokens` of KV, whose messages are right but for `changes`."""
    request_id = f"request-{next(numbers)}"
    offered = {
        "request_id": request_id,
        "ticket": f"ticket of {request_id}",
        "kv_digest": launch.kv_digest,
        "shape": [TOKEN_SHAPE[0], num_tokens, TOKEN_SHAPE[1]],
        "dtype": launch.kv_cache.dtype,
    }
    handed = {
        "request_id": request_id,
        "prompt_ids": list(range(num_tokens)),
        "generated": [4],
        "sampling": Sampling(max_tokens=5, temperature=0.0, top_p=1.0, seed=0, stop_ids=[1]),
    }
    return Transfer(
        Offer(**{name: changes.get(name, value) for name, value in offered.items()}),
        make_latents(num_tokens, launch.kv_cache.dtype) if latents is None else latents,
        Handover(**{name: changes.get(name, value) for name, value in handed.items()}),
    )


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


class Pair:
    """A decode rank's receiver behind `port`, and a sender; what was accepted is in `taken`."""

    def __init__(self, launch):
        self.taken = []
        self.metrics = RankMetrics(launch, 0)
        self.receiver = KvReceiver(launch, TOKEN_SHAPE, VOCAB_SIZE, self._take)
        self.sender = KvSender(self.metrics, max_held_bytes(launch))
        self.port, self.connections = 0, []

    def _take(self, handover, latents, prefix):
        self.taken.append((handover, latents))

    def issue(self, transfer):
        """Tell the decode rank what the gateway tells it."""
        self.receiver.expect(transfer.offer.request_id, f"ticket of {transfer.offer.request_id}")

    async def send(self, transfer):
        self.issue(transfer)
        await self.send_unannounced(transfer)

    async def send_unannounced(self, transfer):
        await self.sender.send(HOST, self.port, transfer.outgoing())

    async def say(self, data):
        """Write bytes on a connection of their own; return what the decode rank says until it closes."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        writer.write(data)
        async with asyncio.timeout(5):
            said = await reader.read()
        writer.close()
        return said


def with_pair(launch, use):
    """Run `use(pair)` against a receiver and a sender."""

    async def run():
        pair = Pair(launch)
        async with listening(pair.receiver.serve) as (pair.port, pair.connections):
            await use(pair)
            hang_up_idle(pair.sender)
        return pair

    return asyncio.run(asyncio.wait_for(run(), 30))


def hang_up_idle(sender):
    for connection in [each for kept in sender._idle.values() for each in kept]:
        connection.abort()


def with_server(launch, serve, use):
    """Run `use(sender, port)` against a decode rank that the test plays."""

    async def run():
        async with listening(serve) as (port, _):
            return await use(KvSender(RankMetrics(launch, 0), max_held_bytes(launch)), port)

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


class SlowLink(HostLink):
    """Pins memory for one request at a time, each when another thread has done its part."""

    pins = True

    def __init__(self):
        self.may_go_on, self.begun = threading.Event(), threading.Event()

    def empty(self, shape, dtype):
        self.begun.set()
        assert self.may_go_on.wait(10)
        return super().empty(shape, dtype)


def test_nobody_waits_while_memory_is_pinned_for_a_request(launches):
    """Meanwhile another sender is told that it has no ticket; then the request arrives whole."""
    link, sent = SlowLink(), transfer(launches["fp32"], 5)

    async def use(pair):
        pair.receiver._link = link
        sending = asyncio.create_task(pair.send(sent))
        assert await asyncio.to_thread(link.begun.wait, 10)
        refusal = await failure_of(pair.send_unannounced(transfer(launches["fp32"], 5)))
        link.may_go_on.set()
        await sending
        assert "no ticket" in refusal

    pair = with_pair(launches["fp32"], use)

    ((handover, latents),) = pair.taken
    assert handover == sent.handover
    assert latents.equal(sent.latents)


def test_requests_come_to_memory_that_was_pinned_before(launches):
    """As long as there is some; then more is pinned, and nothing is refused for want of it."""
    pinned = []

    class Link(HostLink):
        pins = True

        def empty(self, shape, dtype):
            pinned.append(memory := super().empty(shape, dtype))
            return memory

    whole = staged_bytes(launches["fp32"]) // (12 * BYTES_PER_TOKEN["fp32"])
    sent = [transfer(launches["fp32"], 12) for _ in range(whole + 1)]

    async def use(pair):
        pair.receiver._link = Link()
        pair.receiver._staging = Staging(pair.receiver._link, staged_bytes(launches["fp32"]))
        for each in sent:
            await pair.send(each)

    taken = with_pair(launches["fp32"], use).taken

    assert all(latents.equal(each.latents) for (_, latents), each in zip(taken, sent, strict=True))
    staged, *later = (memory.untyped_storage().data_ptr() for memory in pinned)
    assert [latents.untyped_storage().data_ptr() for _, latents in taken] == [staged] * whole + later
    assert len(later) == 1


def test_a_request_aborted_while_memory_is_pinned_for_it_leaves_no_room_taken(launches):
    """The memory is dropped as soon as it is there."""
    link, sent = SlowLink(), transfer(launches["fp32"], 5)

    async def use(pair):
        pair.receiver._link = link
        sending = asyncio.create_task(pair.send(sent))
        assert await asyncio.to_thread(link.begun.wait, 10)
        pair.receiver.abort(sent.offer.request_id)
        link.may_go_on.set()
        await failure_of(sending)

    pair = with_pair(launches["fp32"], use)

    assert pair.taken == []
    assert pair.receiver._host_memory.reserved_bytes()["arriving"] == 0


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("num_tokens", [1, 15])
def test_latents_arrive_bit_for_bit(launches, dtype, num_tokens):
    """Also NaN, infinities, negative zero; the handover comes with them, unchanged."""
    latents = make_latents(num_tokens, dtype)
    latents[0, 0, :4] = torch.tensor([math.nan, math.inf, -0.0, 1e-40])
    sent = transfer(launches[dtype], num_tokens, latents)

    ((taken, received),) = with_pair(launches[dtype], lambda pair: pair.send(sent)).taken

    assert taken == sent.handover
    assert (received.dtype, received.shape) == (latents.dtype, latents.shape)
    assert torch.equal(received.view(torch.uint8), latents.view(torch.uint8))


def test_layers_arrive_in_any_turns_and_chunks(launches, monkeypatch):
    """As prefill computes them: chunk by chunk, layer by layer, while others are sent; in pieces of bounded size."""
    monkeypatch.setattr(kv_sender, "MAX_PIECE_BYTES", 3 * 32)  # three rows of one layer
    latents = make_latents(15)
    sent = transfer(launches["fp32"], 15, latents)

    async def use(pair):
        pair.issue(sent)
        outgoing = Outgoing(sent.offer)
        sending = asyncio.ensure_future(pair.sender.send(HOST, pair.port, outgoing))
        for start, end in ((0, 7), (7, 8), (8, 15)):
            for layer in (0, 1, 2):
                await asyncio.sleep(0.001)
                pair.sender.put(outgoing, layer, start, latents[layer, start:end])
        assert pair.taken == []
        outgoing.finish(sent.handover)
        await sending

    pair = with_pair(launches["fp32"], use)

    assert torch.equal(pair.taken[0][1], latents)
    assert counted(pair.metrics, "framing") > 15 * 80  # three and more pieces of each layer


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_byte_is_counted(launches, dtype):
    """Payload is tokens times bytes per token; framing is the rest of what was written, to the byte."""
    transfers = [transfer(launches[dtype], num_tokens) for num_tokens in (1, 7, 15)]

    async def use(pair):
        for each in transfers:
            await pair.send(each)

    metrics = with_pair(launches[dtype], use).metrics

    written = sum(len(each.data()) for each in transfers)
    assert counted(metrics, "payload") == (1 + 7 + 15) * BYTES_PER_TOKEN[dtype]
    assert counted(metrics, "payload") + counted(metrics, "framing") == written
    assert counted(metrics, "handovers") == 3


def test_what_is_counted_is_what_goes_over_the_wire(launches):
    """A server that only counts bytes sees payload plus framing."""
    sent, seen = transfer(launches["fp32"], 9), []

    async def serve(stream, writer):
        offer = await stream.readexactly(len(encode_frame(sent.offer)))
        writer.write(encode_frame(Proceed(sent.offer.request_id, 0)))
        seen.append(offer + await stream.readexactly(len(sent.data()) - len(offer)))
        writer.write(encode_frame(Accepted(sent.offer.request_id)))
        seen.append(await stream.read(1))  # nothing more comes before the sender goes

    async def use(sender, port):
        await sender.send(HOST, port, sent.outgoing())
        hang_up_idle(sender)
        await asyncio.sleep(0.05)

    with_server(launches["fp32"], serve, use)

    assert seen == [sent.data(), b""]


def test_a_connection_is_kept(launches):
    """Requests one after another share a connection; those at the same time have one each, and few stay."""

    async def use(pair):
        for _ in range(3):
            await pair.send(transfer(launches["fp32"], 4))
        assert len(pair.connections) == 1
        await asyncio.gather(*(pair.send(transfer(launches["fp32"], 4)) for _ in range(6)))
        assert len(pair.connections) == 6
        assert [len(kept) for kept in pair.sender._idle.values()] == [2]

    assert len(with_pair(launches["fp32"], use).taken) == 9


def test_a_connection_that_the_peer_closed_is_not_used_again(launches):
    """A decode rank that was started again takes the next request."""

    async def use(pair):
        await pair.send(transfer(launches["fp32"], 4))
        pair.connections[0].close()
        await asyncio.sleep(0.05)
        await pair.send(transfer(launches["fp32"], 4))

    assert len(with_pair(launches["fp32"], use).taken) == 2


NO_TICKET = "it has no ticket, or one that was used or has ended"
REFUSALS = {
    "another digest": (
        {"kv_digest": "sha256:other"},
        "its KV is of another plan than this unit's, or of other weights than this unit loaded",
    ),
    "a guessed ticket": ({"ticket": "guess"}, NO_TICKET),
    "another type": ({"dtype": "bf16"}, "its KV is bf16 [3, 4, 8], not fp32 [3, 4, 8]"),
    "another depth": ({"shape": [2, 4, 8]}, "its KV is fp32 [2, 4, 8], not fp32 [3, 4, 8]"),
    "a flat shape": ({"shape": [96]}, "its KV is fp32 [96]"),
    "no tokens": ({"shape": [3, 0, 8]}, "its KV is of 0 tokens, this unit takes 1 to 20"),
    "too many tokens": ({"shape": [3, 21, 8]}, "its KV is of 21 tokens, this unit takes 1 to 20"),
    "more than was sent": ({"shape": [3, 5, 8]}, "its KV is not whole"),
    "another length": ({"prompt_ids": [1] * 5}, "its KV is of 4 tokens, the request's would be of 5 to 5"),
    "no prompt": ({"prompt_ids": []}, "its prompt has 0 tokens"),
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
def test_what_does_not_fit_is_refused_with_its_reason(launches, capsys, changes, reason):
    """Both ranks log it in one sentence each, nothing is taken or counted, and the next request goes on."""
    sentences = []

    async def use(pair):
        sentences.append(await failure_of(pair.send(transfer(launches["fp32"], 4, **changes))))
        assert counted(pair.metrics, "payload") == 0
        await pair.send(transfer(launches["fp32"], 4))

    pair = with_pair(launches["fp32"], use)

    assert sentences[0].startswith("the decode rank refused it: ")
    assert reason in sentences[0]
    assert len(pair.taken) == 1
    logged = capsys.readouterr().err
    assert (logged.count("tidemill: refused KV from "), logged.count(reason)) == (1, 2)


def test_a_refusal_names_no_digest_and_no_ticket(launches):
    """Whoever guesses is told nothing about what this unit expects, and a client of the gateway nothing at all."""
    sentences = []

    async def use(pair):
        for changes in ({"kv_digest": "sha256:guess", "shape": [1]}, {"ticket": "guess", "shape": [1]}):
            stranger = transfer(launches["fp32"], 4, **changes)
            sentences.append(await failure_of(pair.send(stranger)))

    with_pair(launches["fp32"], use)

    assert sentences[0].endswith(
        "its KV is of another plan than this unit's, or of other weights than this unit loaded"
    )
    assert sentences[1].endswith(NO_TICKET)
    assert all("sha256" not in sentence and "ticket of" not in sentence for sentence in sentences)


async def arriving(pair, sent):
    """Wait until the decode rank has taken the ticket of a transfer that has not ended."""
    while sent.offer.request_id not in pair.receiver._arriving:
        await asyncio.sleep(0.01)


def test_a_ticket_is_taken_once(launches, monkeypatch):
    """A replayed transfer is refused while the first is on its way and afterwards; the first one notices nothing."""
    monkeypatch.setattr(kv_tickets, "WAIT_S", 0.01)
    sent = transfer(launches["fp32"], 4)

    async def use(pair):
        pair.issue(sent)
        reader, writer = await asyncio.open_connection(HOST, pair.port)
        writer.write(sent.data()[:-1])
        await arriving(pair, sent)
        assert NO_TICKET.encode() in await pair.say(sent.data())
        writer.write(sent.data()[-1:])
        await FrameReader(reader, FromDecode).read()
        await reader.read(1)
        writer.close()
        assert NO_TICKET.encode() in await pair.say(sent.data())

    ((taken, latents),) = with_pair(launches["fp32"], use).taken

    assert taken == sent.handover
    assert torch.equal(latents, sent.latents)


def test_an_offer_may_come_before_its_ticket(launches):
    """The two come on two lines, which promise no order."""
    sent = transfer(launches["fp32"], 4)

    async def use(pair):
        sending = asyncio.ensure_future(pair.send_unannounced(sent))
        await asyncio.sleep(0.05)
        assert not sending.done()
        pair.issue(sent)
        await sending

    assert len(with_pair(launches["fp32"], use).taken) == 1


def test_an_abort_ends_a_transfer_and_its_ticket(launches, monkeypatch):
    """What the gateway aborts never comes to the rank: not when it is half here, nor when it comes later."""
    monkeypatch.setattr(kv_tickets, "WAIT_S", 0.01)
    half, late = (transfer(launches["fp32"], 4) for _ in range(2))

    async def use(pair):
        for each in (half, late):
            pair.issue(each)
        outgoing = Outgoing(half.offer)
        sending = asyncio.ensure_future(pair.sender.send(HOST, pair.port, outgoing))
        outgoing.put(0, 0, half.latents[0])
        await arriving(pair, half)
        for each in (half, late):
            pair.receiver.abort(each.offer.request_id)
        assert "could not be sent" in await failure_of(sending)
        assert NO_TICKET in await failure_of(pair.send_unannounced(late))

    assert with_pair(launches["fp32"], use).taken == []


def test_damage_on_the_way_costs_its_own_request(launches):
    """A bit that flips in a payload is noticed; the ranks go on with the next request."""
    sent = transfer(launches["fp32"], 4)
    data = bytearray(sent.data())
    data[data.index(sent.latents[1].numpy().tobytes()) + 5] ^= 1
    answers = []

    async def use(pair):
        pair.issue(sent)
        answers.append(await pair.say(bytes(data)))
        await pair.send(transfer(launches["fp32"], 4))

    pair = with_pair(launches["fp32"], use)

    assert b"its KV was damaged on its way" in answers[0]
    assert len(pair.taken) == 1


def rearranged(change):
    """The transfer's frames as `change` makes them of the right ones."""

    def data(sent):
        return b"".join(encode_frame(message, len(payload)) + payload for message, payload in change(sent.frames()))

    return data


@pytest.mark.parametrize(
    "data",
    [
        rearranged(lambda frames: frames[1:]),
        rearranged(lambda frames: [frames[0], frames[0], *frames[1:]]),
        rearranged(lambda frames: [frames[0], frames[1], frames[1], *frames[2:]]),
        rearranged(lambda frames: [frames[0], (Piece(9, 0, 4, 0), frames[1][1]), *frames[2:]]),
        rearranged(lambda frames: [frames[0], (Piece(0, 0, 5, 0), frames[1][1] + bytes(32)), *frames[2:]]),
        rearranged(lambda frames: [frames[0], (Piece(0, 0, 2**62, 0), frames[1][1]), *frames[2:]]),
        rearranged(lambda frames: [frames[0], (Piece(0, 0, 4, 0), frames[1][1][:-1]), *frames[2:]]),
        rearranged(lambda frames: [*frames[:-1], (transfer_of_another().handover, b"")]),
    ],
    ids=[
        "no offer",
        "two offers",
        "a layer twice",
        "layer 9",
        "too long",
        "far too long",
        "too short",
        "another's end",
    ],
)
def test_what_no_sender_says_ends_the_connection(launches, data):
    """Nothing is taken, and the next request goes on."""
    sent, answers = transfer(launches["fp32"], 4), []

    async def use(pair):
        pair.issue(sent)
        with suppress(ConnectionResetError):  # bytes were on their way when it closed
            answers.append(await pair.say(data(sent)))
        await pair.send(transfer(launches["fp32"], 4))

    pair = with_pair(launches["fp32"], use)

    assert not any(word in answer for answer in answers for word in (b"accepted", b"refused"))
    assert len(pair.taken) == 1


def transfer_of_another():
    return SimpleNamespace(handover=Handover("another", [1], [1], Sampling(5, 0.0, 1.0, 0, [])))


@pytest.mark.parametrize(
    ("held", "bounds"), [(3, {"MAX_QUEUED": 1}), (2, {"HELD_CACHES": 0, "HELD_BYTES": 2 * 4 * 96})]
)
def test_what_is_held_outside_the_cache_is_bounded(launches, monkeypatch, held, bounds):
    """In number (here 2 in the cache's place and 1 queued) and in bytes; what leaves makes room for the next."""
    for name, value in bounds.items():
        monkeypatch.setattr(kv_receiver if name == "MAX_QUEUED" else host_memory, name, value)
    sentences = []

    async def use(pair):
        for _ in range(held):
            await pair.send(transfer(launches["fp32"], 4))
        sentences.append(await failure_of(pair.send(transfer(launches["fp32"], 4))))
        pair.taken.pop()
        await pair.send(transfer(launches["fp32"], 4))

    pair = with_pair(launches["fp32"], use)

    assert sentences[0].endswith("refused it: this rank holds as much KV outside its cache as it may")
    assert len(pair.taken) == held


@pytest.mark.parametrize("is_half_closed", [False, True])
def test_a_transfer_that_stops_half_way_gives_its_room_back(launches, monkeypatch, is_half_closed):
    """The connection is closed when a frame is not whole in time, or never will be; the next request finds room."""
    monkeypatch.setattr(frames, "FRAME_TIMEOUT_S", 0.1)
    monkeypatch.setattr(host_memory, "HELD_CACHES", 0)
    monkeypatch.setattr(host_memory, "HELD_BYTES", 4 * 96)
    sent = transfer(launches["fp32"], 4)

    async def use(pair):
        pair.issue(sent)
        reader, writer = await asyncio.open_connection(HOST, pair.port)
        writer.write(sent.data()[: len(sent.data()) // 2])
        if is_half_closed:
            writer.write_eof()
        assert (await reader.read()).endswith(encode_frame(Proceed(sent.offer.request_id, 0)))
        writer.close()
        await pair.send(transfer(launches["fp32"], 4))

    assert len(with_pair(launches["fp32"], use).taken) == 1


def test_connections_are_bounded(launches, monkeypatch):
    """One too many is closed at once; the others go on."""
    monkeypatch.setattr(kv_receiver, "MAX_CONNECTIONS", 1)

    async def use(pair):
        await pair.send(transfer(launches["fp32"], 4))
        assert await pair.say(b"") == b""
        await pair.send(transfer(launches["fp32"], 4))

    assert len(with_pair(launches["fp32"], use).taken) == 2


def test_only_a_sender_that_had_a_ticket_may_be_silent(launches, monkeypatch):
    """A connection without an offer, and one with a stranger's, are closed; a sender's stays for its next one."""
    monkeypatch.setattr(kv_receiver, "FIRST_TIMEOUT_S", 0.1)
    monkeypatch.setattr(kv_receiver, "LINGER_S", 0.1)

    async def use(pair):
        await pair.send(transfer(launches["fp32"], 4))
        stranger = transfer(launches["fp32"], 4, ticket="guess")
        pair.issue(stranger)
        assert await pair.say(b"") == b""
        assert b"refused" in await pair.say(encode_frame(stranger.offer))
        await pair.send(transfer(launches["fp32"], 4))

    pair = with_pair(launches["fp32"], use)

    assert (len(pair.taken), len(pair.connections)) == (2, 3)


def test_who_has_no_ticket_may_not_announce_much(launches, monkeypatch):
    """More than an offer takes is refused from its size alone, before anything of it has come."""
    monkeypatch.setattr(kv_receiver, "FIRST_TIMEOUT_S", 600)
    announced = encode_frame(Handover("a", [1] * STRANGER_HEADER_BYTES, [1], Sampling(5, 0.0, 1.0, 0, [])))
    answers = []

    async def use(pair):
        answers.append(await pair.say(announced[:FRAME_PREFIX_BYTES]))

    with_pair(launches["fp32"], use)

    assert answers == [b""]


def test_a_flood_of_strangers_is_logged_at_a_bounded_rate(launches, monkeypatch, capsys):
    """The decode rank says a hundred of their lines a minute, and holds nothing for them."""
    monkeypatch.setattr(kv_tickets, "WAIT_S", 0)

    async def use(pair):
        strangers = [transfer(launches["fp32"], 4, ticket="guess").data() for _ in range(130)]
        answers = await asyncio.gather(*(pair.say(data) for data in strangers), return_exceptions=True)
        assert sum(isinstance(answer, bytes) and b"refused" in answer for answer in answers) >= 100
        assert pair.receiver._arriving == {}

    with_pair(launches["fp32"], use)

    assert capsys.readouterr().err.count("tidemill: refused KV from ") == 100


def test_a_peer_that_vanishes_is_noticed_at_both_ends(launches):
    """The kernel asks after it, at the sender's and at the receiver's socket."""
    asked = []

    async def use(pair):
        await pair.send(transfer(launches["fp32"], 4))
        ((sending,),) = pair.sender._idle.values()
        sockets = [writer.get_extra_info("socket") for writer in (sending._writer, *pair.connections)]
        asked.extend(each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in sockets)

    with_pair(launches["fp32"], use)

    assert asked == [1, 1]


async def read_nothing(stream, writer):
    await asyncio.sleep(20)


async def read_an_offer(stream, writer):
    offer, _ = await FrameReader(stream, FromPrefill).read()
    writer.write(encode_frame(Proceed(offer.request_id, 0)))
    await read_nothing(stream, writer)


def big_transfer(launch):
    return transfer(launch, 4, torch.zeros(TOKEN_SHAPE[0], 500_000, TOKEN_SHAPE[1]))


def test_an_unwanted_transfer_holds_up_no_other(launches):
    """One is cancelled half sent: its connection is not used again, and nothing of it is held."""
    unwanted, wanted = big_transfer(launches["fp32"]), transfer(launches["fp32"], 4)
    received = []

    async def serve(stream, writer):
        reader = FrameReader(stream, FromPrefill, 10**9)
        offer, _ = await reader.read()
        writer.write(encode_frame(Proceed(offer.request_id, 0)))
        if offer == unwanted.offer:
            await read_nothing(stream, writer)
        while not isinstance(message := (await reader.read())[0], Handover):
            pass
        received.append(message.request_id)
        writer.write(encode_frame(Accepted(message.request_id)))

    async def use(sender, port):
        outgoing = unwanted.outgoing()
        sending = asyncio.ensure_future(sender.send(HOST, port, outgoing))
        await asyncio.sleep(0.2)
        sending.cancel()
        await sender.send(HOST, port, wanted.outgoing())
        assert (sending.cancelled(), outgoing.held_bytes, sender._sending) == (True, 0, {})

    with_server(launches["fp32"], serve, use)

    assert received == [wanted.offer.request_id]


def test_a_slow_reader_holds_nobody_up(launches):
    """While one decode rank reads nothing, another gets its requests; the slow one's latents stay within the bound."""
    slow, sentences = big_transfer(launches["fp32"]), []

    async def use(pair):
        async with listening(read_an_offer) as (slow_port, _):
            pair.sender = KvSender(pair.metrics, 2 * slow.latents.nbytes)
            sending = asyncio.ensure_future(pair.sender.send(HOST, slow_port, slow.outgoing()))
            await asyncio.sleep(0.1)
            for _ in range(3):
                await pair.send(transfer(launches["fp32"], 4))
            assert not sending.done()
            (outgoing,) = pair.sender._sending
            for start in range(500_000, 2_000_000, 500_000):
                pair.sender.put(outgoing, 0, start, slow.latents[0])
            held = transfer(launches["fp32"], 4)
            other = Outgoing(held.offer)
            pair.issue(held)
            quick = asyncio.ensure_future(pair.sender.send(HOST, pair.port, other))
            await asyncio.sleep(0.01)
            for layer in range(3):
                pair.sender.put(other, layer, 0, held.latents[layer])
            for start in range(2_000_000, 4_000_000, 500_000):
                pair.sender.put(outgoing, 0, start, slow.latents[0])
            sentences.append(await failure_of(sending))
            other.finish(held.handover)
            await quick

    pair = with_pair(launches["fp32"], use)

    assert sentences[0].endswith("could not be sent to the decode rank: it takes its KV too slowly")
    assert len(pair.taken) == 4


def test_a_refusal_ends_the_sending_at_once(launches):
    """The rank computes no more of the prompt in vain: it is told long before the last layer."""
    sent, sentences = transfer(launches["fp32"], 4, kv_digest="sha256:other"), []

    async def use(pair):
        pair.issue(sent)
        outgoing = Outgoing(sent.offer)
        outgoing.put(0, 0, sent.latents[0])
        sentences.append(await failure_of(pair.sender.send(HOST, pair.port, outgoing)))

    with_pair(launches["fp32"], use)

    assert "its KV is of another plan" in sentences[0]


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
        await pair.send(transfer(launches["fp32"], 2))

    assert len(with_pair(launches["fp32"], use).taken) == 1
    assert escaped == []


def test_nobody_there_is_one_sentence(launches, free_port, capsys):
    """The decode rank is not started, or already gone. Its address is for the log: clients read the sentence."""
    port = free_port()
    sender = KvSender(RankMetrics(launches["fp32"], 0), max_held_bytes(launches["fp32"]))

    sentence = asyncio.run(failure_of(sender.send(HOST, port, transfer(launches["fp32"], 2).outgoing())))

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


async def accept_at_once(stream, writer):
    await stream.read(30)
    writer.write(encode_frame(Accepted("a")))


@pytest.mark.parametrize("serve", [hang_up, answer_garbage, answer_in_another_version, accept_at_once])
def test_a_broken_answer_is_one_sentence(launches, serve):
    """The peer hangs up, talks nonsense or another version, or accepts a request that is not all there."""
    sent = transfer(launches["fp32"], 2)

    async def use(sender, port):
        outgoing = Outgoing(sent.offer)
        outgoing.put(0, 0, sent.latents[0])
        return await failure_of(sender.send(HOST, port, outgoing))

    assert "its KV could not be sent" in with_server(launches["fp32"], serve, use)


async def say_nothing(stream, writer):
    await stream.read(-1)


def test_no_answer_is_one_sentence(launches, monkeypatch):
    """A decode rank that hangs does not hang the prefill rank."""
    monkeypatch.setattr(kv_sender, "REPLY_TIMEOUT_S", 0.1)

    async def use(sender, port):
        return await failure_of(sender.send(HOST, port, transfer(launches["fp32"], 2).outgoing()))

    assert with_server(launches["fp32"], say_nothing, use).endswith("no answer")


def test_a_launch_file_with_other_kv_bytes_is_refused():
    """What the plan counts a token is what the model needs, or the rank does not start."""
    check_layout(KvLayout(1, "bf16", 48), TOKEN_SHAPE)
    with pytest.raises(RuntimeFailure, match="counts 48 bytes of KV a token, the model needs 96"):
        check_layout(KvLayout(1, "fp32", 48), TOKEN_SHAPE)

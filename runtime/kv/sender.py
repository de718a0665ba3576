"""The prefill rank's end of KV transfer: each layer's latents leave while the layers after it are computed.

    step loop --views of latents--> Outgoing --Offer--> decode rank --Proceed(start)-->
                                    Outgoing --Piece, Piece, ..., Handover--> decode rank --Accepted--> counted

An offer brings the names of the prompt's blocks. The decode rank answers how many tokens of them it has, and their
latents are not sent.

Where both launch files say `nixl` and the decode rank is on this machine, the answer also names a place in its memory,
and rows are written there; their pieces then bring no payload, only a checksum. The end of a connection is its last
write's: the decode rank uses the place again once it sees that end, which a process that dies brings about too.

A request's pieces queue here until its decode rank has read them. A slow one holds up nobody else: each request has a
connection to itself, kept for the next one, and what is held for all of them is bounded. Beyond the bound, the request
that holds most fails.

What it does not do: retry. The request's failure is reported to the gateway, and others may go on with it. So the
reason names no address and no digest: those are in this rank's log.
"""

import asyncio
import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from runtime.errors import RuntimeFailure, WireError
from runtime.kv.nixl import NixlAgent, Peer
from runtime.protocol.complaints import Complaints
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Accepted, FromDecode, Handover, HandoverReply, Offer, Piece, Proceed, Refused
from runtime.protocol.sockets import detect_vanished_peer, is_connected, is_local

__all__ = ["MAX_PIECE_BYTES", "KvSender", "Outgoing", "SentBytes", "TransferCounters", "as_bytes", "num_offered_blocks"]

REPLY_TIMEOUT_S = 30.0  # the longest wait for an answer, and for each piece
MAX_PIECE_BYTES = 4 * 2**20  # assumed: its checksum takes 1.4 ms, for which this rank's other connections wait
MAX_IDLE = 2  # assumed: connections kept for each decode rank, which has half of its `MAX_CONNECTIONS` for others
NO_ANSWER = "no answer"
TOO_SLOW = "it takes its KV too slowly"


class TransferCounters(Protocol):
    """Counts the requests that were handed over to decode ranks, and their bytes."""

    def count_transfer(self, num_bytes: "SentBytes", seconds: float, seconds_after_prompt: float) -> None:
        """Count one request that a decode rank has accepted.

        Both times end with the acceptance: `seconds` begins with the latents of the first layer, `seconds_after_prompt`
        with the end of the prompt's computation.
        """


@dataclass(frozen=True)
class SentBytes:
    """The bytes of a request: latents sent, frames sent around them, and latents that the decode rank already had."""

    payload: int = 0
    framing: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class _Rows:
    """Latents [T, C] of one layer from position `start` on. `arrived`, if any, waits until they are in host memory."""

    layer: int
    start: int
    latent_TC: Tensor
    arrived: Callable[[], None] | None

    def cut(self, start: int) -> "_Rows":
        """Return these rows without the rows before position `start`, which may be all of them."""
        num_cut = min(max(start - self.start, 0), len(self.latent_TC))
        return replace(self, start=self.start + num_cut, latent_TC=self.latent_TC[num_cut:])


class Outgoing:
    """One request's KV that is computed and not yet sent, as a queue. Used from one event loop.

    `chain` is the offer's payload: the root and the hashes of `num_offered_blocks` blocks, or nothing.
    """

    def __init__(self, offer: Offer, chain: bytes = b"") -> None:
        self.offer, self.chain = offer, chain
        self.held_bytes = 0
        self.handover: Handover | None = None
        self.failure: str | None = None
        self.began = self.ended = time.perf_counter()
        self._rows: deque[_Rows] = deque()
        self._has_changed = asyncio.Event()

    def put(self, layer: int, start: int, latent_TC: Tensor, arrived: Callable[[], None] | None = None) -> None:
        """Queue a layer's next rows. After a failure they are dropped."""
        if self.failure is None:
            if latent_TC.untyped_storage().nbytes() > 2 * latent_TC.nbytes:
                latent_TC = latent_TC.clone()  # so that a short prompt's rows do not keep a whole step's tensor
            self._rows.append(_Rows(layer, start, latent_TC, arrived))
            self.held_bytes += latent_TC.nbytes
            self.wake()

    def finish(self, handover: Handover) -> None:
        """Queue the request's Handover, after all rows."""
        self.handover = handover
        self.ended = time.perf_counter()
        self.wake()

    def fail(self, reason: str) -> None:
        """Give up the request, and drop its rows."""
        self.failure = reason
        self.drop()
        self.wake()

    def drop(self) -> None:
        """Drop all queued rows."""
        self._rows.clear()
        self.held_bytes = 0

    def wake(self) -> None:
        """Wake the coroutine that waits for rows."""
        self._has_changed.set()

    async def next_rows(self, has_answer: Callable[[], bool]) -> _Rows | None:
        """Wait for the next rows and return them.

        Return None after the last rows, after a failure, or once `has_answer()` says that the decode rank has answered.
        """
        while self.failure is None and not has_answer():
            if self._rows:
                rows = self._rows.popleft()
                self.held_bytes -= rows.latent_TC.nbytes
                return rows
            if self.handover is not None:
                return None
            self._has_changed.clear()
            await self._has_changed.wait()
        return None


class KvSender:
    """Sends all requests' KV from one prefill rank to decode ranks."""

    def __init__(self, counters: TransferCounters, max_held_bytes: int, agent: NixlAgent | None = None) -> None:
        """Begin without transfers. With an `agent`, latents are written into decode ranks' memory on this machine."""
        self._counters = counters
        self._max_held_bytes = max_held_bytes
        self._agent = agent
        self._peers: dict[tuple[str, int], Peer] = {}
        self._sending: dict[Outgoing, _Connection] = {}
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._complain = Complaints(_say)

    def put(
        self, outgoing: Outgoing, layer: int, start: int, latent_TC: Tensor, arrived: Callable[[], None] | None = None
    ) -> None:
        """Queue a request's next rows. If all requests hold over `max_held_bytes`, the largest holder fails."""
        outgoing.put(layer, start, latent_TC, arrived)
        if sum(each.held_bytes for each in self._sending) > self._max_held_bytes:
            slowest = max(self._sending, key=lambda each: each.held_bytes)
            slowest.fail(TOO_SLOW)
            self._sending[slowest].abort()

    async def send(self, host: str, port: int, outgoing: Outgoing) -> None:
        """Send a request's KV until the decode rank accepts it.

        Raises RuntimeFailure if the decode rank refuses or cannot be reached. The log has that rank's address. A
        connection is not used again after a cancelled transfer: another request must not follow half a frame, nor take
        a late answer for its own.
        """
        connection = self._sending[outgoing] = self._connection(host, port)
        try:
            reply = await connection.carry(outgoing)
        except (OSError, UnicodeError, WireError, TimeoutError) as error:
            said = outgoing.failure or str(error) or NO_ANSWER
            self._complain(f"KV could not be sent to {host}:{port}: {said}")
            reason = outgoing.failure or _hide_address(error)
            raise RuntimeFailure(f"its KV could not be sent to the decode rank: {reason}") from None
        finally:
            del self._sending[outgoing]
            outgoing.drop()
            self._keep_or_close(host, port, connection)
        if isinstance(reply, Refused):
            self._complain(f"the decode rank at {host}:{port} refused KV: {reply.reason}")
            raise RuntimeFailure(f"the decode rank refused it: {reply.reason}")
        now = time.perf_counter()
        self._counters.count_transfer(connection.sent, now - outgoing.began, now - outgoing.ended)

    def _connection(self, host: str, port: int) -> "_Connection":
        idle = self._idle.get((host, port), [])
        while idle:
            if (connection := idle.pop()).is_open:
                return connection
            connection.abort()
        return _Connection(host, port, None if self._agent is None else self._meet)

    def _meet(self, host: str, port: int, description: str) -> Peer:
        """Return the NIXL peer of the decode rank that listens at this address now, and forget an earlier one."""
        assert self._agent is not None
        known = self._peers.get((host, port))
        if known is None or known.description != description:
            if known is not None:
                known.forget()
            self._peers[host, port] = known = Peer(self._agent, description)
            if not known.is_writable:
                self._complain(f"KV goes to {host}:{port} over TCP: its memory cannot be reached")
        return known

    def _keep_or_close(self, host: str, port: int, connection: "_Connection") -> None:
        idle = self._idle.setdefault((host, port), [])
        if connection.is_reusable and len(idle) < MAX_IDLE:
            idle.append(connection)
        else:
            connection.abort()
        if not idle:
            del self._idle[host, port]


@dataclass(frozen=True)
class _PeerMemory:
    """A part of a peer's memory, for one request's latents `[num_layers, end - start, latent_dim]`."""

    peer: Peer
    address: int
    start: int
    end: int

    def find(self, layer: int, position: int, row_bytes: int) -> int:
        """Return the address of the row for a layer and a position."""
        return self.address + (layer * (self.end - self.start) + position - self.start) * row_bytes


class _Connection:
    """A connection to one decode rank, which carries one request after another."""

    def __init__(self, host: str, port: int, meet: Callable[[str, int, str], Peer] | None = None) -> None:
        """Do not connect yet. `meet`, if not None, returns the NIXL peer that a decode rank describes in its answer."""
        self._host, self._port, self._meet = host, port, meet
        self._stream: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._replies: FrameReader[FromDecode] | None = None
        self._writing: asyncio.Future[None] | None = None  # a write into the peer's memory that may go on
        self.sent = SentBytes()  # the bytes of the last request
        self.is_reusable = False

    @property
    def is_open(self) -> bool:
        """True if the connection was opened and the peer has not closed it."""
        return self._stream is not None and not self._stream.at_eof()

    async def carry(self, outgoing: Outgoing) -> HandoverReply:
        """Send one request's KV while its prompt is computed, and return the decode rank's answer.

        Raises OSError, TimeoutError or WireError if the connection breaks, is silent or is against the protocol.
        """
        self.is_reusable, self.sent = False, SentBytes()
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            replies = await self._open()
        answer = _listen(replies, outgoing)
        try:
            await self._write(encode_frame(outgoing.offer, len(outgoing.chain)) + outgoing.chain)
            if (proceed := await _read_proceed(answer, outgoing)) is not None:
                answer = _listen(replies, outgoing)
                place = self._place(proceed, outgoing.offer)
                while (rows := await outgoing.next_rows(answer.done)) is not None:
                    await self._write_rows(rows, proceed.start, place)
            return await self._end(outgoing, answer)
        finally:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieve it: the error that broke the writing broke the reading too

    def abort(self) -> None:
        """Close the connection and drop queued bytes, but first wait for a write into the peer's memory to end."""
        if self._writing is not None and not self._writing.done():
            self._writing.add_done_callback(lambda _: self.abort())
        elif self._writer is not None:
            self._writer.transport.abort()

    async def _open(self) -> FrameReader[FromDecode]:
        if self._replies is None:
            self._stream, self._writer = await asyncio.open_connection(self._host, self._port)
            detect_vanished_peer(self._writer)
            self._replies = FrameReader(self._stream, FromDecode)
        return self._replies

    def _place(self, proceed: Proceed, offer: Offer) -> _PeerMemory | None:
        """Return the peer's memory to write to; None if the latents have to go over the connection."""
        assert self._writer is not None
        if proceed.agent is None or proceed.address is None or self._meet is None or not is_local(self._writer):
            return None
        peer = self._meet(self._host, self._port, proceed.agent)
        return _PeerMemory(peer, proceed.address, proceed.start, offer.shape[1]) if peer.is_writable else None

    async def _end(self, outgoing: Outgoing, answer: "_Answer") -> HandoverReply:
        """Send the Handover, unless the decode rank has answered already. Return its answer.

        Raises WireError if the transfer has failed, or if the decode rank closes the connection or gives an answer that
        does not fit, and TimeoutError if no answer comes in time.
        """
        if outgoing.failure is not None:
            raise WireError(outgoing.failure)
        if has_asked := not answer.done():
            assert outgoing.handover is not None
            await self._write(encode_frame(outgoing.handover))
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            frame = await answer
        if frame is None:
            raise WireError("the decode rank closed the connection")
        reply = frame[0]
        if isinstance(reply, Accepted):
            if not has_asked:
                raise WireError("the decode rank accepted what it had not got")
            self.is_reusable = True
        elif isinstance(reply, Proceed):
            raise WireError("the decode rank answers an offer twice")
        return reply

    async def _write_rows(self, rows: _Rows, start: int, place: _PeerMemory | None) -> None:
        """Write rows into the peer's memory `place`, or send them if `place` is None.

        Skip rows before position `start`.
        """
        if rows.arrived is not None:
            await asyncio.to_thread(rows.arrived)
        row_bytes, num_before = rows.latent_TC[0].nbytes, len(rows.latent_TC)
        rows = rows.cut(start)
        num_tokens = len(rows.latent_TC)
        self._count(skipped=(num_before - num_tokens) * row_bytes)
        step = max(MAX_PIECE_BYTES // row_bytes, 1)
        payload = as_bytes(rows.latent_TC)
        for first in range(0, num_tokens, step):
            last = min(first + step, num_tokens)
            part = payload[first * row_bytes : last * row_bytes]
            piece = Piece(rows.layer, rows.start + first, last - first, zlib.crc32(part))
            if place is None:
                await self._write(encode_frame(piece, len(part)), part)
            else:
                await self._write_in_place(part, place, place.find(rows.layer, rows.start + first, row_bytes))
                await self._write(encode_frame(piece))
            await asyncio.sleep(0)  # let other connections run, even if `drain` returned at once

    async def _write_in_place(self, part: memoryview, place: _PeerMemory, address: int) -> None:
        """Write a part into the peer's memory. The write continues after a cancellation or a timeout."""
        assert self._writer is not None
        writer = self._writer
        self._writing = asyncio.ensure_future(place.peer.write(part, address, lambda: not is_connected(writer)))
        self._writing.add_done_callback(lambda ended: ended.exception())  # nobody may await it any more
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await asyncio.shield(self._writing)
        self._count(payload=len(part))

    async def _write(self, frame: bytes, payload: memoryview | None = None) -> None:
        assert self._writer is not None
        self._writer.write(frame)
        self._count(framing=len(frame))
        if payload is not None:
            self._writer.write(payload)
            self._count(payload=len(payload))
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await self._writer.drain()

    def _count(self, payload: int = 0, framing: int = 0, skipped: int = 0) -> None:
        sent = self.sent
        self.sent = SentBytes(sent.payload + payload, sent.framing + framing, sent.skipped + skipped)


_Answer = asyncio.Future[tuple[FromDecode, bytearray] | None]


def _listen(replies: FrameReader[FromDecode], outgoing: Outgoing) -> _Answer:
    """Return the task that reads the decode rank's next answer. The task wakes `outgoing` when the answer has come."""
    answer = asyncio.ensure_future(replies.read())
    answer.add_done_callback(lambda _: outgoing.wake())
    return answer


async def _read_proceed(answer: _Answer, outgoing: Outgoing) -> Proceed | None:
    """Return the decode rank's Proceed; None for any other answer to an offer, which `_end` reports.

    Raises TimeoutError if no answer comes in time, and WireError if the Proceed starts where no offered block ends.
    """
    await asyncio.wait({answer}, timeout=REPLY_TIMEOUT_S)
    if not answer.done():
        raise TimeoutError
    frame = None if answer.exception() is not None else answer.result()
    if frame is None or not isinstance(proceed := frame[0], Proceed):
        return None
    most = num_offered_blocks(outgoing.offer) if outgoing.chain else 0
    if proceed.start % PAGE_TOKENS or proceed.start > most * PAGE_TOKENS:
        raise WireError(f"the decode rank has {proceed.start:,} tokens of {most:,} offered blocks")
    return proceed


def num_offered_blocks(offer: Offer) -> int:
    """Return how many block hashes an offer has: of all whole blocks before the last token, which is always sent."""
    return max(offer.shape[1] - 1, 0) // PAGE_TOKENS


def as_bytes(latents: Tensor) -> memoryview:
    """Return a tensor's bytes, without copying if it is contiguous."""
    return latents.contiguous().view(torch.uint8).numpy().reshape(-1).data


def _hide_address(error: Exception) -> str:
    """Return the reason of a failed exchange in the kernel's words, because asyncio's contain the address."""
    if isinstance(error, WireError):
        return str(error)
    number = error.errno if isinstance(error, OSError) else None
    return NO_ANSWER if number is None else os.strerror(number).lower()


def _say(sentence: str) -> None:
    print(f"tidemill: {sentence}", file=sys.stderr, flush=True)

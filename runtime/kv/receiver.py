"""The decode rank's end of KV transfer: a server on the rank's KV port.

    Offer    short; ticket, digest, shape and size are checked before anything is allocated. The answer, Proceed, says
             how much of it this rank has already (`held_prefix.py`)
    Piece    rows of one layer, in order within it, each with its CRC-32, read to where they stay
    Handover the request itself; with it every layer must be whole. Accepted, or Refused

With `nixl` in the launch file, a sender on this machine may write its rows to where they stay; a piece then brings only
its checksum. It may go on writing until its connection ends (`sender.py`), however its request ended. So a place that
was named and not handed over is in quarantine until then: its connection holds it, and nobody else gets it. Pages of
the cache are never written to so: those of a held prefix are free again once the request is aborted.

A connection carries one request at a time, and is kept for the next one. Whoever is refused loses it: the reason is
said, and what still comes is thrown away. A refusal names nothing that only a unit of the same plan knows.

An Abort comes on the gateway's line. It ends a transfer that has begun, and the ticket of one that has not.
What arrives and what waits for a place in the cache is bounded in number and bytes, and on a GPU comes to memory that
was pinned before (`host_memory.py`).
"""

import asyncio
import math
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.errors import RuntimeFailure, WireError
from runtime.kernels.device import HostLink
from runtime.kernels.precision import DTYPES
from runtime.kv.held_prefix import HeldPrefix, PrefixHolder
from runtime.kv.host_memory import HostMemory, Staging, max_host_bytes, staged_bytes
from runtime.kv.index import HASH_BYTES
from runtime.kv.nixl import NixlAgent
from runtime.kv.sender import MAX_PIECE_BYTES, as_bytes, num_offered_blocks
from runtime.kv.tickets import Tickets
from runtime.launch import KvLayout, UnitLaunch
from runtime.protocol.block_chain import chain_blocks
from runtime.protocol.bounds import explain_uncomputable
from runtime.protocol.complaints import Complaints
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.frames import MAX_HEADER_BYTES, PIECE_BYTES, STRANGER_HEADER_BYTES, FrameReader, encode_frame
from runtime.protocol.messages import Accepted, FromPrefill, Handover, HandoverReply, Offer, Piece, Proceed, Refused
from runtime.protocol.sockets import detect_vanished_peer, is_local

__all__ = ["KvReceiver", "check_layout"]

REPLY_TIMEOUT_S = 30.0
FIRST_TIMEOUT_S = 5.0  # as on the places port: a sender connects when it has an offer, and sends it at once
LONGEST_PAUSE_S = 600.0  # assumed: between two pieces lie the steps of other prompts
LINGER_S = 1.0  # seconds for a refused sender to read the reason
MAX_CONNECTIONS = 4096  # assumed: DeepSeek's largest day had 29 prefill units of 32 ranks, 928 in all
MAX_QUEUED = 65_536  # the most that a spec lets a gateway queue for one decode rank


@dataclass
class _Caller:
    """A prefill rank's connection, with the memory that it may write to and the prefix held for its request."""

    stream: asyncio.StreamReader
    frames: FrameReader[FromPrefill]
    writer: asyncio.StreamWriter
    place: Tensor | None = None
    prefix: HeldPrefix = field(default_factory=HeldPrefix)


class KvReceiver:
    """The server that receives KV from prefill ranks. The gateway says which requests to expect, and which to abort."""

    def __init__(
        self,
        launch: UnitLaunch,
        token_shape: tuple[int, int],
        vocab_size: int,
        accept: Callable[[Handover, Tensor, HeldPrefix], None],
        link: HostLink | None = None,
        memory: HostMemory | None = None,
        agent: NixlAgent | None = None,
        holder: PrefixHolder | None = None,
    ) -> None:
        """Make the server. `token_shape` is (num_layers, latent_dim). Raises RuntimeFailure if memory is short.

        `accept` is called with every request that passed the checks, its latents, and the prefix that they continue.
        `link` allocates the host memory for latents, from which a device copies them, and `memory` is its ledger. With
        an `agent`, senders on this machine write to the pinned part of it. `holder` holds the blocks that this rank has
        of a prompt; without one, everything is sent.
        """
        self._launch = launch
        self._token_shape = token_shape
        self._vocab_size = vocab_size
        self._accept = accept
        self._link = HostLink() if link is None else link
        is_staged = self._link.pins or agent is not None
        self._staging = Staging(self._link, staged_bytes(launch)) if is_staged else None
        self._agent, self._holder = agent, holder
        if agent is not None and self._staging is not None:
            agent.share(self._staging.memory)
        self._max_requests = launch.limits.max_requests + MAX_QUEUED
        self._host_memory = HostMemory(max_host_bytes(launch)) if memory is None else memory
        self._tickets = Tickets(self._max_requests)
        self._arriving: dict[str, _Caller] = {}  # request id -> its connection
        self._num_connections = 0
        self._complain = Complaints(_say)

    def expect(self, request_id: str, ticket: str) -> None:
        """Admit the KV of a request once, from any connection that shows the ticket."""
        self._tickets.issue(request_id, ticket)

    def abort(self, request_id: str) -> None:
        """Refuse the KV of a request that nobody waits for, and end its transfer if it has begun."""
        self._tickets.withdraw(request_id)
        if (caller := self._arriving.pop(request_id, None)) is None:
            return
        if caller.place is None:
            caller.writer.transport.abort()
        else:  # the sender must end the connection: only its end shows that it writes no more
            caller.writer.write(encode_frame(Refused(request_id, "it was aborted")))
            self._release(caller)  # now: the sender may go on for long, but writes to its own memory only

    async def serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one prefill rank's connection, until it closes, breaks the protocol or is refused."""
        self._num_connections += 1
        caller = _Caller(stream, FrameReader(stream, FromPrefill, MAX_PIECE_BYTES), writer)
        try:
            if self._num_connections <= MAX_CONNECTIONS:
                detect_vanished_peer(writer)
                await self._follow(caller)
                await _throw_away(caller)
        except (WireError, OSError):
            pass  # the sender sees the closed connection, and reports the request
        finally:
            if caller.place is not None:
                await _read_to_end(caller)
            self._num_connections -= 1
            writer.close()

    async def _follow(self, caller: _Caller) -> None:
        """Answer the connection's offers until one is refused or the peer closes the connection.

        Raises TimeoutError if no offer with a valid ticket comes in time, so that unknown peers do not use up the
        connections. A peer that has shown a ticket may be silent.
        """
        reply: HandoverReply | None = None
        while not isinstance(reply, Refused):
            timeout_s = FIRST_TIMEOUT_S if reply is None else None
            head = await _next_header(caller.frames, timeout_s, STRANGER_HEADER_BYTES)
            if head is None:
                return
            offer, payload_bytes = head
            if not isinstance(offer, Offer):
                raise WireError("it does not begin with an offer")
            reply = await self._take(offer, payload_bytes, caller)
            caller.writer.write(encode_frame(reply))
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await caller.writer.drain()
        self._complain(f"refused KV from {caller.writer.get_extra_info('peername')}: {reply.reason}")

    async def _take(self, offer: Offer, payload_bytes: int, caller: _Caller) -> HandoverReply:
        if not await self._tickets.redeem(offer.request_id, offer.ticket):
            return Refused(offer.request_id, "it has no ticket, or one that was used or has ended")
        self._arriving[offer.request_id] = caller  # no other connection has it: a ticket is used once
        try:
            _check_offer(offer, self._launch, self._token_shape)
            prefix = caller.prefix = await _read_prefix(offer, payload_bytes, caller.frames)
            start = await self._hold(prefix)
            latents = await self._room(offer, start)
            self._proceed(offer, start, latents, caller)
            handover = await _read_layers(offer, start, latents, caller)
            _check_handover(handover, offer, prefix, self._launch, self._vocab_size)
            if offer.request_id not in self._arriving:
                raise WireError("it was aborted")
            caller.place = None  # a sender that hands over has nothing left to write
            self._accept(handover, latents, prefix)
            caller.prefix = HeldPrefix()  # the accepted request has its prefix now
        except _Refusal as refusal:
            return Refused(offer.request_id, str(refusal))
        finally:
            self._arriving.pop(offer.request_id, None)
            self._release(caller)
        return Accepted(offer.request_id)

    def _release(self, caller: _Caller) -> None:
        """Release the prefix held for a request that will not arrive, so that it can be evicted."""
        prefix, caller.prefix = caller.prefix, HeldPrefix()
        if prefix.root is not None and self._holder is not None:
            self._holder.release(prefix)

    async def _hold(self, prefix: HeldPrefix) -> int:
        """Have the step loop hold, between two steps, the blocks of a prefix that this rank has.

        Return their number of tokens; 0 if the offer has no chain of blocks or this rank has no cache to hold them in.
        """
        if prefix.root is None or self._holder is None:
            return 0
        loop = asyncio.get_running_loop()
        held: asyncio.Future[int] = loop.create_future()

        def answer(num_tokens: int) -> None:
            if not held.done():
                held.set_result(num_tokens)

        self._holder.hold(prefix, lambda num_tokens: loop.call_soon_threadsafe(answer, num_tokens))
        return await held

    def _proceed(self, offer: Offer, start: int, latents: Tensor, caller: _Caller) -> None:
        """Tell the sender from which token on to send and, if it is on this machine, where to write the latents.

        Raises WireError if the request was aborted.
        """
        if offer.request_id not in self._arriving:
            raise WireError("it was aborted")
        agent = address = None
        is_staged = self._staging is not None and self._staging.contains(latents)
        if self._agent is not None and is_staged and is_local(caller.writer):
            caller.place, agent, address = latents, self._agent.describe(), latents.data_ptr()
        caller.writer.write(encode_frame(Proceed(offer.request_id, start, agent, address)))

    async def _room(self, offer: Offer, start: int) -> Tensor:
        """Return host memory for an offer's latents from token `start` on.

        The memory counts in the ledger until nothing refers to it. Raises _Refusal if there is no room.
        """
        num_layers, num_tokens, latent_dim = offer.shape
        shape = [num_layers, num_tokens - start, latent_dim]
        num_bytes = shape[1] * self._launch.kv_cache.bytes_per_token
        if not self._host_memory.take("arriving", num_bytes, self._max_requests):
            raise _Refusal("this rank holds as much KV outside its cache as it may")
        try:
            latents = await self._memory(shape, DTYPES[offer.dtype])
        except BaseException:
            self._host_memory.give_back("arriving", num_bytes)
            raise
        self._host_memory.watch("arriving", latents)
        return latents

    async def _memory(self, shape: list[int], dtype: torch.dtype) -> Tensor:
        """Return host memory for a request's latents: a piece of the pinned buffer, if a gap is large enough.

        Otherwise memory is allocated, and pinned if the link pins, on another thread so that other connections do not
        wait. Torch keeps pinned memory for later requests.
        """
        if self._staging is not None and (latents := self._staging.take(shape, dtype)) is not None:
            return latents
        if self._link.pins:
            return await asyncio.to_thread(self._link.empty, shape, dtype)
        return self._link.empty(shape, dtype)


class _Refusal(Exception):
    """A request is refused. Its sender gets the text, and a client of the gateway may read it."""


def check_layout(layout: KvLayout, token_shape: tuple[int, int]) -> None:
    """Raises RuntimeFailure if a launch file's KV layout is not this model's."""
    computed = math.prod(token_shape) * DTYPES[layout.dtype].itemsize
    if layout.bytes_per_token != computed:
        raise RuntimeFailure(
            f"the launch file counts {layout.bytes_per_token} bytes of KV a token, the model needs {computed}"
        )


def _check_offer(offer: Offer, launch: UnitLaunch, token_shape: tuple[int, int]) -> None:
    """Raises _Refusal for an offer that does not fit. Only a sender that knows the KV digest learns why."""
    if offer.kv_digest != launch.kv_digest:
        raise _Refusal("its KV is of another plan than this unit's, or of other weights than this unit loaded")
    num_layers, latent_dim = token_shape
    num_tokens = offer.shape[1] if len(offer.shape) > 1 else 0
    expected = [num_layers, num_tokens, latent_dim]
    if offer.dtype != launch.kv_cache.dtype or offer.shape != expected:
        raise _Refusal(f"its KV is {offer.dtype} {offer.shape}, not {launch.kv_cache.dtype} {expected}")
    limit = launch.limits.max_request_tokens
    if not 1 <= num_tokens <= limit:
        raise _Refusal(f"its KV is of {num_tokens:,} tokens, this unit takes 1 to {limit:,}")


async def _read_prefix(offer: Offer, payload_bytes: int, frames: FrameReader[FromPrefill]) -> HeldPrefix:
    """Return a prefix with an offer's chain of block hashes. None of its blocks is held yet.

    Raises _Refusal if the chain's length does not fit the offer.
    """
    if not payload_bytes:
        return HeldPrefix()
    expected = HASH_BYTES * (1 + num_offered_blocks(offer))
    if payload_bytes != expected:
        raise _Refusal(f"its chain of block names has {payload_bytes:,} bytes, that of its tokens {expected:,}")
    chain = bytes(await frames.read_payload(payload_bytes))
    root, *hashes = (chain[first : first + HASH_BYTES] for first in range(0, len(chain), HASH_BYTES))
    return HeldPrefix(root, hashes)


def _check_handover(handover: Handover, offer: Offer, prefix: HeldPrefix, launch: UnitLaunch, vocab_size: int) -> None:
    """Raises _Refusal if a handover does not fit its offer or its prefix, or cannot be computed here."""
    limit = launch.limits.max_request_tokens
    reason = explain_uncomputable(handover.prompt_ids, handover.generated, handover.sampling, vocab_size, limit)
    if reason is not None:
        raise _Refusal(reason)
    if not handover.generated:
        raise _Refusal("it comes without its first token")
    least, most = len(handover.prompt_ids), len(handover.prompt_ids) + len(handover.generated) - 1
    if not least <= offer.shape[1] <= most:
        raise _Refusal(f"its KV is of {offer.shape[1]:,} tokens, the request's would be of {least:,} to {most:,}")
    if prefix.root is not None:
        token_ids = [*handover.prompt_ids, *handover.generated][: len(prefix.hashes) * PAGE_TOKENS]
        if chain_blocks(prefix.root, token_ids) != prefix.hashes:
            raise _Refusal("its block names are not those of its tokens")


async def _read_layers(offer: Offer, start: int, latents: Tensor, caller: _Caller) -> Handover:
    """Read the latents of the tokens from `start` on, and return the Handover that follows them.

    Raises _Refusal if they are damaged or incomplete, and WireError if the peer breaks the protocol.
    """
    num_layers, num_tokens, _ = offer.shape
    num_read = [start] * num_layers
    while True:
        head = await _next_header(caller.frames, LONGEST_PAUSE_S)
        if head is None:
            raise WireError("it closed before its handover")
        message, payload_bytes = head
        if not isinstance(message, Piece):
            break
        if message.layer >= num_layers or message.start != num_read[message.layer]:
            raise WireError("a piece is not the next one of its layer")
        num_read[message.layer] = end = message.start + message.num_tokens
        if not message.start < end <= num_tokens:
            raise WireError("a piece is empty, or longer than its layer")
        place = as_bytes(latents[message.layer, message.start - start : end - start])
        if payload_bytes or caller.place is None:
            await _read_payload(payload_bytes, place, caller.frames)
        if zlib.crc32(place) != message.checksum:
            raise _Refusal("its KV was damaged on its way")
    if not isinstance(message, Handover) or message.request_id != offer.request_id or payload_bytes:
        raise WireError("it does not end with its handover")
    if any(number != num_tokens for number in num_read):
        raise _Refusal("its KV is not whole")
    return message


async def _read_payload(payload_bytes: int, place: memoryview, frames: FrameReader[FromPrefill]) -> None:
    if payload_bytes != len(place):
        raise WireError(f"a piece has {payload_bytes:,} bytes, not {len(place):,}")
    await frames.read_payload_into(place)


async def _next_header(
    frames: FrameReader[FromPrefill], timeout_s: float | None, max_bytes: int = MAX_HEADER_BYTES
) -> tuple[Offer | Piece | Handover, int] | None:
    async with asyncio.timeout(timeout_s):
        return await frames.read_header(max_bytes)


async def _throw_away(caller: _Caller) -> None:
    """Read and drop what the peer still sends: closing with unread bytes would drop the refusal sent to it."""
    if caller.place is None:
        caller.writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await _read_to_end(caller)


async def _read_to_end(caller: _Caller) -> None:
    """Wait until the peer has closed the connection or its process has ended."""
    with suppress(OSError):
        while await caller.stream.read(PIECE_BYTES):
            pass


def _say(sentence: str) -> None:
    print(f"tidemill: {sentence}", file=sys.stderr, flush=True)

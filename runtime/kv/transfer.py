"""Latent KV from a prefill rank to a decode rank, over TCP.

One frame a request: a Handover message, then the latents as raw bytes, `[num_layers, num_cached, latent_dim]`. The
receiver checks digest, ids, sampling, shape, type and size before it reads them, and answers Accepted or Refused; a
refusal names nothing that only a unit of the same plan knows. A connection is kept for the next request to the same
rank. No pickle; nothing is sent that the receiver did not expect.

What waits at a decode rank for a place in its cache is bounded in number and bytes (`_Room`). The bounds are far from
what a gateway sends: they are for what goes wrong.

What it does not do: retry. The request's failure is reported to the gateway, which tells its client. So the reason
names no address and no digest: those are in this rank's log.
"""

import asyncio
import math
import os
import queue
import sys
import time
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from runtime.errors import RuntimeFailure, WireError
from runtime.kernels.device import HostLink
from runtime.kernels.precision import DTYPES
from runtime.launch import KvLayout, UnitLaunch
from runtime.protocol.bounds import why_not_computable
from runtime.protocol.complaints import Complaints
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Accepted, Handover, HandoverReply, Refused
from runtime.protocol.sockets import notice_a_vanished_peer

__all__ = ["KvReceiver", "KvSender", "TransferCounters"]

REPLY_TIMEOUT_S = 30.0
FIRST_TIMEOUT_S = 5.0  # as on the places port: a sender connects when it has a handover, and sends it at once
MAX_CONNECTIONS = 4096  # assumed: DeepSeek's largest day had 29 prefill units of 32 ranks, 928 in all
MAX_QUEUED = 65_536  # the most that a spec lets a gateway queue for one decode rank
NO_ANSWER = "no answer"
HELD_CACHES, HELD_BYTES = 8, 2**30  # assumed: what waits has at most so many times the cache's bytes, or a GiB


class TransferCounters(Protocol):
    """Counts what was handed over."""

    def kv_sent(self, payload_bytes: int, framing_bytes: int, seconds: float) -> None:
        """Hear that one request was handed over and accepted."""


class KvSender:
    """The prefill rank's side."""

    def __init__(self, counters: TransferCounters) -> None:
        self._counters = counters
        self._connections: dict[tuple[str, int], _Connection] = {}
        self._complain = Complaints(_say)

    async def send(self, host: str, port: int, handover: Handover, latents: Tensor) -> None:
        """Hand a request over. Raise RuntimeFailure when the decode rank cannot be reached or refuses.

        The log says where that rank is.
        """
        connection = self._connections.setdefault((host, port), _Connection(host, port))
        payload = _to_bytes(latents)
        frame = encode_frame(handover, len(payload))
        began = time.perf_counter()
        try:
            reply = await connection.exchange(frame, payload)
        except (OSError, WireError, TimeoutError) as error:
            self._complain(f"KV could not be sent to {host}:{port}: {str(error) or NO_ANSWER}")
            raise RuntimeFailure(f"its KV could not be sent to the decode rank: {_without_address(error)}") from None
        if isinstance(reply, Refused):
            self._complain(f"the decode rank at {host}:{port} refused KV: {reply.reason}")
            raise RuntimeFailure(f"the decode rank refused it: {reply.reason}")
        self._counters.kv_sent(len(payload), len(frame), time.perf_counter() - began)


class KvReceiver:
    """The decode rank's side: a server on the rank's KV port."""

    def __init__(
        self,
        launch: UnitLaunch,
        token_shape: tuple[int, int],
        vocab_size: int,
        accept: Callable[[Handover, Tensor], None],
        link: HostLink | None = None,
    ) -> None:
        """Make the server. `token_shape` is (num_layers, latent_dim).

        `accept` gets every handover that passed the checks. `link` gives the memory that latents come to, from which a
        device copies them.
        """
        self._launch = launch
        self._token_shape = token_shape
        self._vocab_size = vocab_size
        self._accept = accept
        self._link = HostLink() if link is None else link
        self._max_payload_bytes = launch.limits.max_request_tokens * launch.kv_cache.bytes_per_token
        cache_bytes = launch.limits.kv_tokens * launch.kv_cache.bytes_per_token
        self._room = _Room(launch.limits.max_requests + MAX_QUEUED, max(HELD_CACHES * cache_bytes, HELD_BYTES))
        self._num_connections = 0

    async def serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one prefill rank's connection, until it closes or breaks the protocol."""
        self._num_connections += 1
        try:
            if self._num_connections <= MAX_CONNECTIONS:
                notice_a_vanished_peer(writer)
                await self._follow(FrameReader(stream, Handover, self._max_payload_bytes), writer)
        except (WireError, OSError):
            pass  # the sender sees the closed connection, and reports the request
        finally:
            self._num_connections -= 1
            writer.close()

    async def _follow(self, frames: FrameReader[Handover], writer: asyncio.StreamWriter) -> None:
        """Answer handovers. Raise TimeoutError when none with this unit's digest comes in time.

        So a stranger's connection takes no other's place for long. A sender that knows the digest may be silent.
        """
        is_known = False
        while (head := await _next_header(frames, None if is_known else FIRST_TIMEOUT_S)) is not None:
            is_known = is_known or head[0].kv_digest == self._launch.kv_digest
            writer.write(encode_frame(await self._receive(*head, frames)))
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await writer.drain()

    async def _receive(self, handover: Handover, payload_bytes: int, frames: FrameReader[Handover]) -> HandoverReply:
        reason = why_refused(handover, payload_bytes, self._launch, self._token_shape, self._vocab_size)
        if reason is None and not self._room.take(payload_bytes):
            reason = "this rank holds as much KV outside its cache as it may"
        if reason is not None:
            await frames.skip_payload(payload_bytes)
            return Refused(handover.request_id, reason)
        latents = await self._read_latents(handover, payload_bytes, frames)
        self._accept(handover, latents)
        return Accepted(handover.request_id)

    async def _read_latents(self, handover: Handover, payload_bytes: int, frames: FrameReader[Handover]) -> Tensor:
        """Read them into memory that they stay in; their room is given back when nobody has them any more."""
        try:
            latents = self._link.empty(handover.shape, DTYPES[handover.dtype])
            await frames.read_payload_into(_to_bytes(latents))
        except BaseException:  # also where this task is cancelled
            self._room.give_back(payload_bytes)
            raise
        weakref.finalize(latents, self._room.give_back, payload_bytes)
        return latents


async def _next_header(frames: FrameReader[Handover], timeout_s: float | None) -> tuple[Handover, int] | None:
    async with asyncio.timeout(timeout_s):
        return await frames.read_header()


def why_refused(
    handover: Handover, payload_bytes: int, launch: UnitLaunch, token_shape: tuple[int, int], vocab_size: int
) -> str | None:
    """Return why this handover cannot be taken, or None.

    Only a sender that knows the digest hears about anything else. A client of the gateway may read the reason.
    """
    num_layers, latent_dim = token_shape
    num_tokens = _num_cached(handover)
    expected_shape = [num_layers, num_tokens, latent_dim]
    if handover.kv_digest != launch.kv_digest:
        return "its KV is of another plan than this unit's, or of other weights than this unit loaded"
    limit = launch.limits.max_request_tokens
    reason = why_not_computable(handover.prompt_ids, handover.generated, handover.sampling, vocab_size, limit)
    if reason is not None:
        return reason
    if not handover.generated:
        return "it comes without its first token"
    if handover.dtype != launch.kv_cache.dtype or handover.shape != expected_shape:
        return f"its KV is {handover.dtype} {handover.shape}, not {launch.kv_cache.dtype} {expected_shape}"
    if payload_bytes != num_tokens * launch.kv_cache.bytes_per_token:
        return f"its KV has {payload_bytes:,} bytes for {num_tokens:,} tokens"
    return None


def _num_cached(handover: Handover) -> int:
    """Return how many tokens' KV comes: what the shape says, within what the tokens allow."""
    num_prompt_tokens, num_generated = len(handover.prompt_ids), len(handover.generated)
    said = handover.shape[1] if len(handover.shape) > 1 else 0
    return min(max(said, num_prompt_tokens), num_prompt_tokens + max(num_generated - 1, 0))


class _Room:
    """The limit on handovers that are held at a time, and on their bytes.

    Room is taken on the network's thread, and given back on whichever drops the last reference to the latents; the
    garbage collector may do that at any moment. So what is given back goes through a queue that allows for it.
    """

    def __init__(self, max_handovers: int, max_bytes: int) -> None:
        self._max_handovers, self._max_bytes = max_handovers, max_bytes
        self._num_handovers = self._num_bytes = 0
        self._given_back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take(self, num_bytes: int) -> bool:
        """Take room for one more handover; return whether there was any."""
        while not self._given_back.empty():
            self._num_bytes -= self._given_back.get()
            self._num_handovers -= 1
        if self._num_handovers == self._max_handovers or self._num_bytes + num_bytes > self._max_bytes:
            return False
        self._num_handovers += 1
        self._num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Give back the room of one handover of `num_bytes`, which nobody holds any more."""
        self._given_back.put(num_bytes)


def check_layout(layout: KvLayout, token_shape: tuple[int, int]) -> None:
    """Refuse a launch file whose KV layout is not this model's. Raise RuntimeFailure."""
    computed = math.prod(token_shape) * DTYPES[layout.dtype].itemsize
    if layout.bytes_per_token != computed:
        raise RuntimeFailure(
            f"the launch file counts {layout.bytes_per_token} bytes of KV a token, the model needs {computed}"
        )


class _Connection:
    """One decode rank, one exchange at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._turn = asyncio.Lock()
        self._reader: FrameReader[HandoverReply] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def exchange(self, frame: bytes, payload: memoryview) -> HandoverReply:
        """Send one request and return the answer to it.

        After a failure, or where nobody wants the answer any more, the next exchange opens another line: so no late
        answer is taken for its own, and no half frame is before its own.
        """
        async with self._turn:
            reply = None
            try:
                async with asyncio.timeout(REPLY_TIMEOUT_S):
                    reply = await self._exchange(frame, payload)
            finally:
                if reply is None:
                    self._close()
            return reply

    async def _exchange(self, frame: bytes, payload: memoryview) -> HandoverReply:
        if self._reader is None or self._writer is None:
            stream, self._writer = await asyncio.open_connection(self._host, self._port)
            notice_a_vanished_peer(self._writer)
            self._reader = FrameReader(stream, HandoverReply)
        self._writer.write(frame)
        self._writer.write(payload)
        await self._writer.drain()
        reply = await self._reader.read()
        if reply is None:
            raise WireError("the decode rank closed the connection")
        return reply[0]

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()  # what is queued for it goes nowhere
        self._reader = self._writer = None


def _without_address(error: Exception) -> str:
    """Return why an exchange failed. The words of asyncio's own errors hold the address, so the kernel's are taken."""
    if isinstance(error, WireError):
        return str(error)
    number = error.errno if isinstance(error, OSError) else None
    return NO_ANSWER if number is None else os.strerror(number).lower()


def _say(sentence: str) -> None:
    print(f"tidemill: {sentence}", file=sys.stderr, flush=True)


def _to_bytes(latents: Tensor) -> memoryview:
    return latents.contiguous().view(torch.uint8).numpy().reshape(-1).data

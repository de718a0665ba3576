"""Latent KV from a prefill rank to a decode rank, over TCP.

One frame a request: a Handover message, then the latents as raw bytes, `[num_layers, prompt tokens, latent_dim]`. The
receiver checks digest, shape, type and size before it takes them, and answers Accepted or Refused. A connection is
kept for the next request to the same rank. No pickle; nothing is sent that the receiver did not expect.

What it does not do: retry. The request's failure is reported to the gateway, which knows whom else to ask.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from runtime.errors import RuntimeFailure, WireError
from runtime.kernels.precision import DTYPES
from runtime.launch import KvLayout, UnitLaunch
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Accepted, Handover, HandoverReply, Refused

__all__ = ["KvReceiver", "KvSender", "TransferCounters"]

REPLY_TIMEOUT_S = 30.0


class TransferCounters(Protocol):
    """Who counts what was handed over."""

    def kv_sent(self, payload_bytes: int, framing_bytes: int, seconds: float) -> None:
        """Hear that one request was handed over and accepted."""


class KvSender:
    """The prefill rank's side."""

    def __init__(self, counters: TransferCounters) -> None:
        self._counters = counters
        self._connections: dict[tuple[str, int], _Connection] = {}

    async def send(self, host: str, port: int, handover: Handover, latents: Tensor) -> None:
        """Hand a request over. Raises RuntimeFailure when the decode rank cannot be reached or refuses."""
        connection = self._connections.setdefault((host, port), _Connection(host, port))
        payload = _to_bytes(latents)
        frame = encode_frame(handover, len(payload))
        began = time.perf_counter()
        try:
            reply = await connection.exchange(frame, payload)
        except (OSError, WireError, TimeoutError) as error:
            connection.close()
            raise RuntimeFailure(f"its KV could not be sent to {host}:{port}: {str(error) or 'no answer'}") from None
        if isinstance(reply, Refused):
            raise RuntimeFailure(f"the decode rank at {host}:{port} refused it: {reply.reason}")
        self._counters.kv_sent(len(payload), len(frame), time.perf_counter() - began)


class KvReceiver:
    """The decode rank's side: a server on the rank's KV port."""

    def __init__(
        self, launch: UnitLaunch, token_shape: tuple[int, int], accept: Callable[[Handover, Tensor], None]
    ) -> None:
        """`token_shape`: (num_layers, latent_dim). `accept` gets every handover that passed the checks."""
        self._launch = launch
        self._token_shape = token_shape
        self._accept = accept
        self._max_payload_bytes = launch.limits.max_request_tokens * launch.kv_cache.bytes_per_token

    async def serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One prefill rank's connection, until it closes or breaks the protocol."""
        reader = FrameReader(stream, Handover, self._max_payload_bytes)
        try:
            while (frame := await reader.read()) is not None:
                handover, payload = frame
                writer.write(encode_frame(self._receive(handover, payload)))
                await writer.drain()
        except (WireError, ConnectionError):
            pass  # the sender sees the closed connection, and reports the request
        finally:
            writer.close()

    def _receive(self, handover: Handover, payload: bytes) -> HandoverReply:
        reason = why_refused(handover, len(payload), self._launch, self._token_shape)
        if reason is not None:
            return Refused(handover.request_id, reason)
        latents = torch.frombuffer(bytearray(payload), dtype=DTYPES[handover.dtype]).view(handover.shape)
        self._accept(handover, latents)
        return Accepted(handover.request_id)


def why_refused(handover: Handover, payload_bytes: int, launch: UnitLaunch, token_shape: tuple[int, int]) -> str | None:
    """Why this handover cannot be taken, or None."""
    num_layers, latent_dim = token_shape
    num_tokens = len(handover.prompt_ids)
    if num_tokens < 1:
        return "its prompt has 0 tokens"
    expected_shape = [num_layers, num_tokens, latent_dim]
    if handover.kv_digest != launch.kv_digest:
        return f"its KV is of {handover.kv_digest}, this unit's of {launch.kv_digest}"
    if handover.dtype != launch.kv_cache.dtype or handover.shape != expected_shape:
        return f"its KV is {handover.dtype} {handover.shape}, not {launch.kv_cache.dtype} {expected_shape}"
    if payload_bytes != num_tokens * launch.kv_cache.bytes_per_token:
        return f"its KV has {payload_bytes:,} bytes for {num_tokens:,} tokens"
    if num_tokens + handover.sampling.max_tokens > launch.limits.max_request_tokens:
        return f"it could grow over {launch.limits.max_request_tokens:,} tokens"
    return None


def check_layout(layout: KvLayout, token_shape: tuple[int, int]) -> None:
    """Refuse a launch file whose KV layout is not this model's. Raises RuntimeFailure."""
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

    def close(self) -> None:
        """After a failure: the next exchange opens another line, so that no late answer is taken for its own."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def exchange(self, frame: bytes, payload: memoryview) -> HandoverReply:
        async with self._turn, asyncio.timeout(REPLY_TIMEOUT_S):
            if self._reader is None or self._writer is None:
                stream, self._writer = await asyncio.open_connection(self._host, self._port)
                self._reader = FrameReader(stream, HandoverReply)
            self._writer.write(frame)
            self._writer.write(payload)
            await self._writer.drain()
            reply = await self._reader.read()
            if reply is None:
                raise WireError("the decode rank closed the connection")
            return reply[0]


def _to_bytes(latents: Tensor) -> memoryview:
    return latents.contiguous().view(torch.uint8).numpy().reshape(-1).data

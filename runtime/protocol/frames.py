"""Frames: the format of messages over TCP between processes. A checked prefix, JSON and raw bytes; no pickle.

    magic "TDML" | version u16 | reserved u16 | header bytes u32 | payload bytes u64 | header (JSON) | payload

The header is one message of `messages.py`, the payload the raw bytes of a tensor (or nothing). Sizes are checked before
anything is allocated; the JSON is decoded into a closed set of types. A peer without a proven identity may not send a
header of more than STRANGER_HEADER_BYTES. A frame that has begun must be whole within FRAME_TIMEOUT_S; between frames a
peer may be silent for as long as it likes. This file does not retry or reconnect.

Both ends must have the same VERSION, which covers frames and messages. A change to any field of a message raises it
here, and raises the `wire_version` that the planner writes, so that `kv_digest` changes too. The prefix up to the
version never changes, so that each end can name the other end's version.
"""

import asyncio
import struct
from collections.abc import Coroutine
from types import UnionType
from typing import Any, Generic, TypeVar

import msgspec

from runtime.errors import WireError, WireVersionError

__all__ = [
    "FRAME_PREFIX_BYTES",
    "MAX_HEADER_BYTES",
    "PIECE_BYTES",
    "STRANGER_HEADER_BYTES",
    "VERSION",
    "FrameReader",
    "encode_frame",
]

MAGIC = b"TDML"
VERSION = 11
_PREFIX = struct.Struct("!4sHHIQ")
FRAME_PREFIX_BYTES = _PREFIX.size
MAX_HEADER_BYTES = 16 * 2**20
STRANGER_HEADER_BYTES = 16 * 2**10  # assumed: names, digests and a ticket take one of them
FRAME_TIMEOUT_S = 30.0
PIECE_BYTES = 2**20
LEFT_INSIDE = "the peer closed the connection inside a frame"

Message = TypeVar("Message")
Read = TypeVar("Read")


def encode_frame(message: msgspec.Struct, payload_bytes: int = 0) -> bytes:
    """Return a frame without its payload, which the caller writes right after it."""
    header = msgspec.json.encode(message)
    return _PREFIX.pack(MAGIC, VERSION, 0, len(header), payload_bytes) + header


class FrameReader(Generic[Message]):
    """Reads frames of one set of messages from a stream. Payloads over `max_payload_bytes` are refused."""

    def __init__(
        self, stream: asyncio.StreamReader, messages: type[Message] | UnionType, max_payload_bytes: int = 0
    ) -> None:
        self._stream = stream
        self._decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(messages)
        self._max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()  # received, not read yet

    async def read(self) -> tuple[Message, bytearray] | None:
        """Return the next message and its payload; None if the peer closed between frames.

        Raises WireError if the peer breaks the protocol or closes within a frame.
        """
        head = await self.read_header()
        return None if head is None else (head[0], await self.read_payload(head[1]))

    async def read_header(self, max_bytes: int = MAX_HEADER_BYTES) -> tuple[Message, int] | None:
        """Return (next message, its payload's size), or None if the peer closed. The header has at most `max_bytes`.

        The caller must read the payload before it reads the next message.
        """
        if not self._buffer and not await self._receive_more():
            return None
        return self._take_header(max_bytes) or await _read_within_timeout(self._read_rest_of_header(max_bytes))

    def read_buffered(self) -> Message | None:
        """Return the next message if all of it has come; None otherwise. Never waits. The message has no payload.

        A reader of thousands of small frames a second thus waits once for all frames that came together.
        """
        assert self._max_payload_bytes == 0
        head = self._take_header()
        return None if head is None else head[0]

    async def read_first(self, name: str, timeout_s: float) -> Message:
        """Return the message that begins a connection. This message is short and has no payload.

        Raises WireError, which calls the message `name`, if the message does not come in time.
        """
        assert self._max_payload_bytes == 0
        try:
            async with asyncio.timeout(timeout_s):
                head = await self.read_header(STRANGER_HEADER_BYTES)
        except TimeoutError:
            raise WireError(f"no {name} within {timeout_s:g} s") from None
        if head is None:
            raise WireError(f"it closed before its {name}")
        return head[0]

    async def read_payload(self, num_bytes: int) -> bytearray:
        """Return the payload, read into new memory."""
        payload = bytearray(num_bytes)
        await self.read_payload_into(memoryview(payload))
        return payload

    async def read_payload_into(self, payload: memoryview) -> None:
        """Read the payload piece by piece into its final place, so that gigabytes are not in memory twice."""
        await _read_within_timeout(self._fill(payload))

    async def _read_rest_of_header(self, max_bytes: int) -> tuple[Message, int]:
        while (head := self._take_header(max_bytes)) is None:
            if not await self._receive_more():
                raise WireError(LEFT_INSIDE)
        return head

    def _take_header(self, max_bytes: int = MAX_HEADER_BYTES) -> tuple[Message, int] | None:
        """Return the next message and its payload's size; None if a part of its header has not come."""
        if len(self._buffer) < FRAME_PREFIX_BYTES:
            return None
        header_bytes, payload_bytes = self._check_prefix(max_bytes)
        end = FRAME_PREFIX_BYTES + header_bytes
        if len(self._buffer) < end:
            return None
        message = self._decode(self._buffer[FRAME_PREFIX_BYTES:end])
        del self._buffer[:end]
        return message, payload_bytes

    async def _fill(self, payload: memoryview) -> None:
        filled = 0
        while filled < len(payload):
            piece = await self._read_piece(len(payload) - filled)
            payload[filled : filled + len(piece)] = piece
            filled += len(piece)

    async def _read_piece(self, max_bytes: int) -> bytes | bytearray:
        if self._buffer:
            piece = self._buffer[:max_bytes]
            del self._buffer[:max_bytes]
            return piece
        heard = await self._receive(min(max_bytes, PIECE_BYTES))
        if not heard:
            raise WireError(LEFT_INSIDE)
        return heard

    async def _receive_more(self) -> bool:
        """Receive more bytes into the buffer. Return False if the stream has ended."""
        heard = await self._receive(PIECE_BYTES)
        self._buffer += heard
        return bool(heard)

    async def _receive(self, max_bytes: int) -> bytes:
        try:
            return await self._stream.read(max_bytes)
        except OSError:
            return b""

    def _check_prefix(self, max_bytes: int) -> tuple[int, int]:
        magic, version, _, header_bytes, payload_bytes = _PREFIX.unpack_from(self._buffer)
        if magic != MAGIC:
            raise WireError("the peer does not speak Tidemill's wire protocol")
        if version != VERSION:
            raise WireVersionError(f"the peer speaks wire version {version}, this runtime {VERSION}")
        if header_bytes > max_bytes:
            raise WireError(f"a frame's header of {header_bytes:,} bytes is over the limit of {max_bytes:,}")
        if payload_bytes > self._max_payload_bytes:
            raise WireError(f"a frame's payload of {payload_bytes:,} bytes is over {self._max_payload_bytes:,}")
        return header_bytes, payload_bytes

    def _decode(self, header: bytearray) -> Message:
        try:
            return self._decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: too deep
            raise WireError(f"a message cannot be read: {error}") from None


async def _read_within_timeout(reading: Coroutine[Any, Any, Read]) -> Read:
    try:
        async with asyncio.timeout(FRAME_TIMEOUT_S):
            return await reading
    except TimeoutError:  # also raised by sockets, where it is an OSError
        raise WireError(f"the peer did not end its frame within {FRAME_TIMEOUT_S:g} s") from None

"""Frames: how processes of the runtime speak over TCP. No pickle: a checked header, JSON, and raw bytes.

    magic "TDML" | version u16 | reserved u16 | header bytes u32 | payload bytes u64 | header (JSON) | payload

The header is one message of `messages.py`, the payload the raw bytes of a tensor (or nothing). Sizes are checked
before anything is allocated; the JSON is decoded into a closed set of types. A frame that has begun must be whole
within FRAME_TIMEOUT_S; between frames a peer may be silent for as long as it likes. It does not retry or reconnect.

Both ends have one VERSION, or do not talk. It is that of frames and messages alike: whatever changes a field of any
message raises it, here and as `wire_version` in what the planner writes, so that `kv_digest` differs too. The prefix
up to the version stays as it is for ever, so that each end can name the other's.
"""

import asyncio
import struct
from collections.abc import Coroutine
from types import UnionType
from typing import Any, Generic, TypeVar

import msgspec

from runtime.errors import WireError, WireVersionError

__all__ = ["FRAME_PREFIX_BYTES", "PIECE_BYTES", "VERSION", "FrameReader", "encode_frame"]

MAGIC = b"TDML"
VERSION = 6
_PREFIX = struct.Struct("!4sHHIQ")
FRAME_PREFIX_BYTES = _PREFIX.size
MAX_HEADER_BYTES = 16 * 2**20
FRAME_TIMEOUT_S = 30.0
PIECE_BYTES = 2**20

Message = TypeVar("Message")
Read = TypeVar("Read")


def encode_frame(message: msgspec.Struct, payload_bytes: int = 0) -> bytes:
    """Return the frame up to its payload, which the caller writes right after it."""
    header = msgspec.json.encode(message)
    return _PREFIX.pack(MAGIC, VERSION, 0, len(header), payload_bytes) + header


class FrameReader(Generic[Message]):
    """Reads frames of one set of messages from a stream, refusing payloads over `max_payload_bytes`."""

    def __init__(
        self, stream: asyncio.StreamReader, messages: type[Message] | UnionType, max_payload_bytes: int = 0
    ) -> None:
        self._stream = stream
        self._decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(messages)
        self._max_payload_bytes = max_payload_bytes

    async def read(self) -> tuple[Message, bytearray] | None:
        """Return the next message and its payload; None when the peer closed between frames. Raise WireError."""
        head = await self.read_header()
        return None if head is None else (head[0], await self.read_payload(head[1]))

    async def read_header(self) -> tuple[Message, int] | None:
        """Return the next message and its payload's size.

        The caller must read or skip the payload before it reads the next message.
        """
        try:
            prefix = await self._stream.readexactly(FRAME_PREFIX_BYTES)
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise WireError("the peer closed the connection inside a frame") from None
        except OSError:
            return None
        header_bytes, payload_bytes = self._check_prefix(prefix)
        return self._decode(await _in_time(self._rest_of_header(header_bytes))), payload_bytes

    async def first(self, name: str, timeout_s: float) -> Message:
        """Read the message that begins a connection.

        Raise WireError, which says `name`, if it does not come in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                frame = await self.read()
        except TimeoutError:
            raise WireError(f"no {name} within {timeout_s:g} s") from None
        if frame is None:
            raise WireError(f"it closed before its {name}")
        return frame[0]

    async def read_payload(self, num_bytes: int) -> bytearray:
        """Read the payload into memory of its own."""
        payload = bytearray(num_bytes)
        await self.read_payload_into(memoryview(payload))
        return payload

    async def read_payload_into(self, payload: memoryview) -> None:
        """Read the payload piece by piece to where it stays: it may have gigabytes, and is never there twice."""
        await _in_time(self._fill(payload))

    async def skip_payload(self, num_bytes: int) -> None:
        """Read the payload and keep nothing of it."""
        await _in_time(self._skip(num_bytes))

    async def _rest_of_header(self, num_bytes: int) -> bytes:
        try:
            return await self._stream.readexactly(num_bytes)
        except (asyncio.IncompleteReadError, OSError):
            raise WireError("the peer closed the connection inside a frame") from None

    async def _fill(self, payload: memoryview) -> None:
        filled = 0
        while filled < len(payload):
            piece = await self._piece(len(payload) - filled)
            payload[filled : filled + len(piece)] = piece
            filled += len(piece)

    async def _skip(self, num_bytes: int) -> None:
        while num_bytes:
            num_bytes -= len(await self._piece(num_bytes))

    async def _piece(self, max_bytes: int) -> bytes:
        try:
            piece = await self._stream.read(min(max_bytes, PIECE_BYTES))
        except OSError:
            piece = b""
        if not piece:
            raise WireError("the peer closed the connection inside a frame")
        return piece

    def _check_prefix(self, prefix: bytes) -> tuple[int, int]:
        magic, version, _, header_bytes, payload_bytes = _PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise WireError("the peer does not speak Tidemill's wire protocol")
        if version != VERSION:
            raise WireVersionError(f"the peer speaks wire version {version}, this runtime {VERSION}")
        if header_bytes > MAX_HEADER_BYTES:
            raise WireError(f"a frame's header of {header_bytes:,} bytes is over the limit of {MAX_HEADER_BYTES:,}")
        if payload_bytes > self._max_payload_bytes:
            raise WireError(f"a frame's payload of {payload_bytes:,} bytes is over {self._max_payload_bytes:,}")
        return header_bytes, payload_bytes

    def _decode(self, header: bytes) -> Message:
        try:
            return self._decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last: it nests too deeply
            raise WireError(f"a message cannot be read: {error}") from None


async def _in_time(reading: Coroutine[Any, Any, Read]) -> Read:
    try:
        async with asyncio.timeout(FRAME_TIMEOUT_S):
            return await reading
    except TimeoutError:  # from a socket too: it is an OSError
        raise WireError(f"the peer did not end its frame within {FRAME_TIMEOUT_S:g} s") from None

"""Frames: how processes of the runtime speak over TCP. No pickle: a checked header, JSON, and raw bytes.

    magic "TDML" | version u16 | reserved u16 | header bytes u32 | payload bytes u64 | header (JSON) | payload

The header is one message of `messages.py`, the payload the raw bytes of a tensor (or nothing). Sizes are checked
before anything is allocated; the JSON is decoded into a closed set of types. It does not retry or reconnect.

Both ends have one VERSION, or do not talk. It is that of frames and messages alike: whatever changes a field of any
message raises it, here and as `wire_version` in what the planner writes, so that `kv_digest` differs too. The prefix
up to the version stays as it is for ever, so that each end can name the other's.
"""

import asyncio
import struct
from types import UnionType
from typing import Generic, TypeVar

import msgspec

from runtime.errors import WireError, WireVersionError

__all__ = ["FRAME_PREFIX_BYTES", "VERSION", "FrameReader", "encode_frame"]

MAGIC = b"TDML"
VERSION = 1
_PREFIX = struct.Struct("!4sHHIQ")
FRAME_PREFIX_BYTES = _PREFIX.size
MAX_HEADER_BYTES = 16 * 2**20

Message = TypeVar("Message")


def encode_frame(message: msgspec.Struct, payload_bytes: int = 0) -> bytes:
    """The frame up to its payload, which the caller writes right after it."""
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

    async def read(self) -> tuple[Message, bytes] | None:
        """The next message and its payload; None when the peer closed between frames. Raises WireError."""
        try:
            prefix = await self._stream.readexactly(FRAME_PREFIX_BYTES)
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise WireError("the peer closed the connection inside a frame") from None
        except OSError:
            return None
        header_bytes, payload_bytes = self._check_prefix(prefix)
        try:
            header = await self._stream.readexactly(header_bytes)
            payload = await self._stream.readexactly(payload_bytes)
        except (asyncio.IncompleteReadError, OSError):
            raise WireError("the peer closed the connection inside a frame") from None
        return self._decode(header), payload

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
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"a message cannot be read: {error}") from None

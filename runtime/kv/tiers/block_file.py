"""The file format of one block of latents, and the checks that a file is that block.

    magic, format          8 + 4 bytes
    shape                  3 x 4 bytes: layers, tokens, latent size
    dtype                  16 bytes, as torch calls it
    length of the latents  8 bytes
    block_digest, hash     32 + 32 bytes (`runtime/kv/blocks.py`)
    checksum               16 bytes: the GMAC of all the others
    latents                [num_layers, PAGE_TOKENS, latent_dim]

All of a header follows from whose block it is, so nothing in a file is believed: it is the block that was asked for,
byte for byte, or it is none. Worked example: DeepSeek-V3's blocks have 128 + 61 x 64 x 576 x 2 = 4,497,536 bytes.

The checksum is tested whenever a block is read. It is that of `runtime/checkpoint/reading.py`, for its reasons: it has
128 bits and takes a fifth of CRC-32's time. It finds accidents. Whoever can write these files can forge it.

Numbers are little-endian. Where a file lies is `folder.py`'s business.
"""

import math
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

__all__ = ["CUT", "DAMAGED", "FOREIGN", "HEADER_BYTES", "BlockForm", "NotThisBlock", "read_block", "write_parts"]

MAGIC, FORMAT = b"tidemill", 1
FIELDS = struct.Struct("<8sI3I16sQ32s32s")
CHECKSUM_BYTES = 16
HEADER_BYTES = FIELDS.size + CHECKSUM_BYTES
LENGTH = struct.Struct("<Q")
LENGTH_AT = struct.calcsize("<8sI3I16s")
KNOWN_KEY = AES(b"tidemill latents")  # nothing is encrypted
NONCE = bytes(12)
PART_BYTES = 2**18  # checked while in the CPU's cache: 0.21 ms for a block of DeepSeek-V3 instead of 0.55

CUT = "cut"  # the file ends before its header says
DAMAGED = "damaged"  # the checksum is wrong
FOREIGN = "foreign"  # the file is whole, but another block or another format


class NotThisBlock(Exception):
    """A file is not the requested block; `reason` is CUT, DAMAGED or FOREIGN."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class BlockForm:
    """What all blocks of one `block_digest` have in common: the digest, shape and dtype."""

    block_digest: bytes
    shape: tuple[int, int, int]  # [num_layers, PAGE_TOKENS, latent_dim]
    dtype: torch.dtype

    @property
    def latent_bytes(self) -> int:
        """The bytes of one block's latents."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def file_bytes(self) -> int:
        """The bytes of one block's file."""
        return HEADER_BYTES + self.latent_bytes

    def parts(self, block_hash: bytes, latents: memoryview) -> list[bytes | memoryview]:
        """Return a block's file in parts to be written one after another. The latents are not copied."""
        fields, checksum = self._fields(block_hash), _begin_checksum()
        checksum.authenticate_additional_data(fields)
        checksum.authenticate_additional_data(latents)
        return [fields, _end_checksum(checksum), latents]

    def _fields(self, block_hash: bytes) -> bytes:
        dtype = str(self.dtype).removeprefix("torch.").encode()
        return FIELDS.pack(MAGIC, FORMAT, *self.shape, dtype, self.latent_bytes, self.block_digest, block_hash)

    def is_of(self, fields: bytes | bytearray, block_hash: bytes) -> bool:
        """Return whether a file's header fields are those of the block with the hash `block_hash`."""
        return fields == self._fields(block_hash)


def read_block(file: int, form: BlockForm, block_hash: bytes, into: memoryview) -> None:
    """Read a block's latents from an open file to `into`.

    Raises NotThisBlock or OSError if the file is not that block or cannot be read; `into` is undefined then.
    """
    assert into.nbytes == form.latent_bytes
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise NotThisBlock(FOREIGN)
    if found.st_size != form.file_bytes:
        raise NotThisBlock(_explain_size(file, found.st_size))
    header, checksum = bytearray(HEADER_BYTES), _begin_checksum()
    _fill(memoryview(header), file, 0)
    fields, expected = header[: FIELDS.size], header[FIELDS.size :]
    checksum.authenticate_additional_data(fields)
    for start in range(0, into.nbytes, PART_BYTES):
        part = into[start : start + PART_BYTES]
        _fill(part, file, HEADER_BYTES + start)
        checksum.authenticate_additional_data(part)
    if _end_checksum(checksum) != expected:
        raise NotThisBlock(DAMAGED)
    if not form.is_of(fields, block_hash):
        raise NotThisBlock(FOREIGN)


def write_parts(file: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all parts from the file's beginning. Raises OSError if the disk does not take them."""
    left = [memoryview(part) for part in parts]
    at = 0
    while left:
        written = os.pwritev(file, left, at)
        at += written
        left = _skip_bytes(left, written)


def _explain_size(file: int, size: int) -> str:
    """Return CUT if a file is shorter than its own header says, FOREIGN if it is as long, DAMAGED if it is longer."""
    header = os.pread(file, HEADER_BYTES, 0)
    if len(header) < HEADER_BYTES:
        return CUT
    own = HEADER_BYTES + LENGTH.unpack_from(header, LENGTH_AT)[0]
    return CUT if size < own else FOREIGN if size == own else DAMAGED


def _fill(part: memoryview, file: int, at: int) -> None:
    """Fill `part` from a file, beginning at byte `at`.

    Raises NotThisBlock if the file is too short, OSError if unreadable.
    """
    while part:
        num_read = os.preadv(file, [part], at)
        if not num_read:
            raise NotThisBlock(CUT)
        part, at = part[num_read:], at + num_read


def _skip_bytes(parts: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return the parts without their first `num_bytes` bytes."""
    while parts and num_bytes >= parts[0].nbytes:
        num_bytes -= parts[0].nbytes
        parts = parts[1:]
    return [parts[0][num_bytes:], *parts[1:]] if parts else []


def _begin_checksum() -> AEADEncryptionContext:
    return Cipher(KNOWN_KEY, GCM(NONCE)).encryptor()


def _end_checksum(checksum: AEADEncryptionContext) -> bytes:
    checksum.finalize()
    return checksum.tag

"""Digests of the tensors that a rank reads, made while it reads them.

With a manifest they are the manifest's SHA-256. Without one they only tell ranks apart that read different bytes by
accident, and a CRC-32 does that for less: it misses one change of a tensor in 4 billion, and none within 32
bits. Nobody is kept from forging one: whoever can write a checkpoint can write its manifest as well.

Hashing lets go of the interpreter, so parts are hashed on threads of their own while the next ones are read. A tensor's
parts are hashed on one thread, in order. Few bytes wait: a loading rank's memory stays that of its weights and little
more.
"""

import hashlib
import zlib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from runtime.checkpoint.manifest import MANIFEST
from runtime.checkpoint.tensors import StoredTensor
from runtime.errors import CheckpointError

__all__ = ["ReadDigests"]

AT_ONCE_BYTES = 2**18  # a smaller part is hashed sooner than it is handed to a thread
WAITING_BYTES = 2**25  # so that a thread that wakes up late delays nobody


class _Crc32:
    """CRC-32 with the methods of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, part: memoryview) -> None:
        self._value = zlib.crc32(part, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


class ReadDigests:
    """Takes tensors in parts, each tensor's in order. `found` has the digest of every tensor that is complete.

    When a tensor's digest is not the one in `expected`, of the manifest, CheckpointError is raised a few parts later.
    """

    def __init__(self, expected: Mapping[str, str] | None, num_threads: int) -> None:
        self.found: dict[str, str] = {}
        self._expected = expected
        self._begun: dict[str, tuple[int, hashlib._Hash | _Crc32]] = {}  # tensor -> bytes so far, and their hash
        self._threads = [ThreadPoolExecutor(1, "digests") for _ in range(num_threads)]
        self._waiting: deque[tuple[int, Future[None]]] = deque()
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for the last parts, and raise what they raise unless something was raised before."""
        try:
            if kind is None:
                self._wait_until(0)
        finally:
            for thread in self._threads:
                thread.shutdown()

    def add(self, name: str, stored: StoredTensor, part: memoryview) -> None:
        """Take the next part of a tensor, whose bytes nobody changes any more."""
        if part.nbytes == stored.num_bytes < AT_ONCE_BYTES:
            self._take(name, stored, part)
            return
        self._wait_until(WAITING_BYTES)
        thread = self._threads[hash(name) % len(self._threads)]
        self._waiting.append((part.nbytes, thread.submit(self._take, name, stored, part)))
        self._waiting_bytes += part.nbytes

    def _wait_until(self, num_bytes: int) -> None:
        """Wait until at most `num_bytes` wait to be hashed."""
        while self._waiting and (self._waiting_bytes > num_bytes or self._waiting[0][1].done()):
            part_bytes, hashed = self._waiting.popleft()
            self._waiting_bytes -= part_bytes
            hashed.result()

    def _take(self, name: str, stored: StoredTensor, part: memoryview) -> None:
        new = _Crc32() if self._expected is None else hashlib.sha256()
        so_far, digest = self._begun.pop(name, (0, new))
        digest.update(part)
        if so_far + part.nbytes < stored.num_bytes:
            self._begun[name] = so_far + part.nbytes, digest
            return
        self.found[name] = f"{'crc32' if self._expected is None else 'sha256'}:{digest.hexdigest()}"
        if self._expected is not None and self._expected[name] != self.found[name]:
            raise CheckpointError(
                f"{stored.path}: the bytes of {name} are not those of {MANIFEST}: copy the file again"
            )

"""Digests of the tensors that a rank reads, computed as it reads them.

Without a manifest, digests must only show that ranks read different bytes by accident. A GMAC (NIST SP 800-38D) with a
published key does that. It has 128 bits, and processors have instructions for it, so a part is hashed at once, while it
is in the cache. It does not prevent forgery, but neither does a manifest: whoever can write a checkpoint can write its
manifest.

With a manifest they are SHA-256, like the manifest's. That takes longer but releases the interpreter's lock, so threads
hash parts while the next ones are read. A tensor's parts are hashed on one thread, in order. Few bytes wait to be
hashed, so a loading rank needs little more memory than its weights.
"""

import hashlib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runtime.checkpoint.manifest import MANIFEST
from runtime.checkpoint.tensors import StoredTensor
from runtime.errors import CheckpointError

__all__ = ["ReadDigests"]

AT_ONCE_BYTES = 2**18  # hashing a smaller part takes less time than handing it to a thread
KNOWN_KEY, NONCE = AESGCM(b"tidemill weights"), bytes(12)  # nothing is encrypted
WAITING_BYTES = 2**25  # assumed: enough that a thread that wakes up late delays no other


class _Gmac:
    """A checksum with hashlib's methods: the GMAC of its parts' GMACs.

    The checksum depends on where parts begin.
    """

    def __init__(self) -> None:
        self._tags = b""

    def update(self, part: bytes | memoryview) -> None:
        self._tags += KNOWN_KEY.encrypt(NONCE, b"", part)

    def hexdigest(self) -> str:
        return KNOWN_KEY.encrypt(NONCE, b"", self._tags).hex()


class ReadDigests:
    """Takes tensors in parts, each tensor's parts in order. `found` has the digest of every complete tensor.

    If a tensor's digest differs from the manifest's in `expected`, CheckpointError is raised a few parts later.
    """

    def __init__(self, expected: Mapping[str, str] | None, num_threads: int) -> None:
        self.found: dict[str, str] = {}
        self._expected = expected
        self._partial: dict[str, tuple[int, hashlib._Hash | _Gmac]] = {}  # tensor -> bytes so far, and their hash
        self._threads = [ThreadPoolExecutor(1, "digests") for _ in range(num_threads)]
        self._waiting: deque[tuple[int, Future[None]]] = deque()
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for the last parts and raise their errors, unless an error was raised before."""
        try:
            if kind is None:
                self._wait_until(0)
        finally:
            for thread in self._threads:
                thread.shutdown()

    def add(self, name: str, stored: StoredTensor, part: memoryview) -> None:
        """Take the next part of a tensor, to be hashed on a thread. The bytes must not change any more.

        While too many bytes are still to be hashed, wait.
        """
        if self._expected is None or part.nbytes == stored.num_bytes < AT_ONCE_BYTES:
            self._take(name, stored, part)
            return
        self._wait_until(WAITING_BYTES)
        thread = self._threads[hash(name) % len(self._threads)]
        self._waiting.append((part.nbytes, thread.submit(self._take, name, stored, part)))
        self._waiting_bytes += part.nbytes

    def _wait_until(self, num_bytes: int) -> None:
        """Wait until at most `num_bytes` are still to be hashed."""
        while self._waiting and (self._waiting_bytes > num_bytes or self._waiting[0][1].done()):
            part_bytes, hashed = self._waiting.popleft()
            self._waiting_bytes -= part_bytes
            hashed.result()

    def _take(self, name: str, stored: StoredTensor, part: memoryview) -> None:
        new = _Gmac() if self._expected is None else hashlib.sha256()
        so_far, digest = self._partial.pop(name, (0, new))
        digest.update(part)
        if so_far + part.nbytes < stored.num_bytes:
            self._partial[name] = so_far + part.nbytes, digest
            return
        self.found[name] = f"{'gmac' if self._expected is None else 'sha256'}:{digest.hexdigest()}"
        if self._expected is not None and self._expected[name] != self.found[name]:
            raise CheckpointError(
                f"{stored.path}: the bytes of {name} are not those of {MANIFEST}: copy the file again"
            )

"""Copies a checkpoint's files, several at a time, and compares their bytes with the manifest meanwhile.

A file is named `.NAME.partial` until it is whole and on the disk. An existing file of that name is never written to,
because it may be a link. `stage.py` decides which files are copied, and when.
"""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from runtime.checkpoint.folder import UnchangedFiles, bytes_digest, open_file
from runtime.checkpoint.manifest import MANIFEST, Manifest
from runtime.checkpoint.tensors import LENGTH_BYTES, Shard
from runtime.errors import CheckpointError, RuntimeFailure

__all__ = ["copy_files", "partial_name", "replace_file", "say"]

PART_BYTES = 8 * 2**20
SAY_EVERY_S = 10.0


@dataclass(frozen=True)
class _Piece:
    """A run of bytes in a file, and the digest that the manifest has for it."""

    name: str
    end: int
    digest: str


def copy_files(
    folder: Path,
    destination: Path,
    sizes: Mapping[str, int],
    shards: Mapping[str, Shard],
    manifest: Manifest | None,
    num_threads: int,
) -> None:
    """Copy the files in `sizes` (name -> bytes), up to `num_threads` at a time.

    Files in `shards` (name -> file of tensors) are compared with the manifest, if there is one. Raises CheckpointError
    if a source file is wrong, and RuntimeFailure or OSError if `destination` cannot be written.
    """
    total = sum(sizes.values())
    free = shutil.disk_usage(destination).free
    if total > free:
        raise RuntimeFailure(f"{destination} has {free:,} bytes free, and {total:,} are to be copied to it: make room")
    if not sizes:
        say(f"{destination} has the checkpoint already")
        return
    progress = _Progress(total)
    threads = ThreadPoolExecutor(num_threads)
    try:
        copies = [
            threads.submit(
                _copy, folder / name, destination / name, size, _pieces(shards.get(name), manifest), progress
            )
            for name, size in sizes.items()
        ]
        for copy in copies:
            copy.result()
    finally:  # without waiting for files that have not begun
        threads.shutdown(cancel_futures=True)
    checked = "compared with its manifest" if manifest else f"not compared: it has no {MANIFEST}"
    say(f"copied {total / 1e9:,.1f} GB from {folder} to {destination}, {checked}")


def partial_name(name: str) -> str:
    """Return the name under which a file is written until it is complete."""
    return f".{name}.partial"


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is complete and on the disk. Raises OSError if it cannot."""
    partial = path.with_name(partial_name(path.name))
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:  # never follows a link
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o644)  # ranks run as another user
    partial.replace(path)


def say(sentence: str) -> None:
    """Print a line to stderr, the pod's log."""
    print(f"tidemill: {sentence}", file=sys.stderr, flush=True)


def _pieces(shard: Shard | None, manifest: Manifest | None) -> Sequence[_Piece]:
    """Return the pieces of a file of tensors in order: its header, then each tensor.

    Return none for other files, or without a manifest to compare the pieces with.
    """
    if shard is None or manifest is None:
        return ()
    expected = manifest.files[shard.path.name]
    tensors = sorted(shard.tensors.items(), key=lambda named: (named[1].start, named[1].num_bytes))
    data = shard.num_bytes - sum(tensor.num_bytes for tensor in shard.tensors.values())
    length = (data - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little")
    return [
        _Piece("its header's length", LENGTH_BYTES, bytes_digest(length)),
        _Piece("its header", data, expected.header),
        *(_Piece(name, tensor.start + tensor.num_bytes, expected.tensors[name]) for name, tensor in tensors),
    ]


def _copy(source: Path, destination: Path, size: int, pieces: Sequence[_Piece], progress: "_Progress") -> None:
    """Copy one file of `size` bytes. Raises CheckpointError about `source`, and OSError about `destination`."""
    check = _Check(source, pieces)
    with replace_file(destination) as file:
        for part in _read_parts(source, size):
            check.take(part)
            file.write(part)
            progress.add(len(part))


def _read_parts(path: Path, size: int) -> Iterator[bytes]:
    """Yield the `size` bytes of a file. Raises CheckpointError if it cannot be read, or has another size."""
    left, unchanged = size, UnchangedFiles([path])
    try:
        with open_file(path) as file:
            while part := file.read(min(PART_BYTES, left + 1)):  # one byte more, to check that the file ends there
                left -= len(part)
                if left < 0:
                    raise CheckpointError(f"{path} grew while it was copied: it had {size:,} bytes")
                yield part
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if left:
        raise CheckpointError(f"{path} became shorter while it was copied: it had {size:,} bytes")
    unchanged.require()


class _Check:
    """Compares the pieces of a file with their digests as the bytes come."""

    def __init__(self, path: Path, pieces: Sequence[_Piece]) -> None:
        self._path = path
        self._remaining = list(reversed(pieces))
        self._position = 0
        self._hash = hashlib.sha256()

    def take(self, part: bytes) -> None:
        """Take the next bytes of the file.

        Raises CheckpointError if a piece ends whose digest is not the manifest's.
        """
        rest = memoryview(part)
        while rest and self._remaining:
            piece = self._remaining[-1]
            own = rest[: piece.end - self._position]
            self._hash.update(own)
            self._position += len(own)
            rest = rest[len(own) :]
            while self._remaining and self._remaining[-1].end == self._position:  # tensors may be empty
                self._compare(self._remaining.pop())

    def _compare(self, piece: _Piece) -> None:
        found, self._hash = f"sha256:{self._hash.hexdigest()}", hashlib.sha256()
        if found != piece.digest:
            where = f"{self._path}: {piece.name} is {found}, and {piece.digest} in {MANIFEST}"
            raise CheckpointError(f"{where}: copy the checkpoint there again")


class _Progress:
    """Prints the progress of the copy to stderr, line by line, because a pod's log is no terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._copied, self._lock = total, 0, Lock()
        self._began = self._last_report = time.monotonic()

    def add(self, num_bytes: int) -> None:
        """Count `num_bytes` more bytes as copied, and print the progress every `SAY_EVERY_S` seconds."""
        with self._lock:
            self._copied += num_bytes
            now = time.monotonic()
            if now - self._last_report < SAY_EVERY_S:
                return
            self._last_report = now
            rate = self._copied / (now - self._began)
            left_s = (self._total - self._copied) / rate
        amount = f"{self._copied / 1e9:,.1f} of {self._total / 1e9:,.1f} GB"
        say(f"copied {amount}, {rate / 1e9:.2f} GB/s, {left_s:,.0f} s left")

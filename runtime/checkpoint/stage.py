"""`python -m runtime stage`: copy a checkpoint to a node's own disk before its ranks load it.

A pod's first container runs it, each time that the pod starts. So a copy that is there is found within a moment, one
that was interrupted goes on, and of two pods on one node the second waits for the first.

    .NAME.partial       a file on its way; it gets its name once it is whole and on the disk
    .tidemill-staged    which source the files are of: its files, their sizes and times, and its manifest

Where the checkpoint has a manifest, the bytes of every tensor are compared with it while they are copied. Ranks compare
the copy again as they load it: the manifest is copied too.
"""

import fcntl
import hashlib
import json
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

from runtime.checkpoint.folder import digest_of_bytes, open_file, resolve
from runtime.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from runtime.checkpoint.tensors import Shard, read_shards
from runtime.errors import CheckpointError, RuntimeFailure

__all__ = ["stage"]

STAGED = ".tidemill-staged"
LOCK = ".tidemill-stage.lock"
PART_BYTES = 8 * 2**20
SAY_EVERY_S = 10.0


@dataclass(frozen=True)
class _Piece:
    """A run of bytes of a file, and the digest that the manifest has of it."""

    name: str
    end: int
    digest: str


def stage(source: str, destination: Path, num_threads: int) -> None:
    """Make `destination` hold the checkpoint at `source`. Raises CheckpointError, and RuntimeFailure."""
    folder = resolve(source)
    shards = {shard.path.name: shard for shard in read_shards(folder)}
    manifest = read_manifest(folder)
    if manifest is not None:
        manifest.check_headers(list(shards.values()))
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    try:
        destination.mkdir(parents=True, exist_ok=True)
        with _alone_in(destination):
            _forget_other_sources(destination, _identity(folder, sizes), sizes)
            missing = [name for name, size in sizes.items() if _size(destination / name) != size]
            _copy_all(folder, destination, {name: sizes[name] for name in missing}, shards, manifest, num_threads)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {error.filename or destination}: {error.strerror}") from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other pods of this node out, which may stage the same. The kernel lets go of the lock with the process."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another pod that copies to {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _identity(folder: Path, sizes: Mapping[str, int]) -> str:
    """What tells this source from another of the same sizes, without reading it."""
    times = {name: (folder / name).stat().st_mtime_ns for name in sizes}
    manifest = digest_of_bytes((folder / MANIFEST).read_bytes()) if MANIFEST in sizes else None
    return json.dumps({"files": sizes, "times": times, "manifest": manifest}, sort_keys=True)


def _forget_other_sources(destination: Path, identity: str, sizes: Mapping[str, int]) -> None:
    """Remove the files of another source, and note which one those to come are of."""
    staged = destination / STAGED
    if staged.exists() and staged.read_text() == identity:
        return
    staged.unlink(missing_ok=True)  # first: what is removed halfway is of no source
    for name in sizes:
        (destination / name).unlink(missing_ok=True)
    unfinished = destination / f"{STAGED}.partial"
    unfinished.write_text(identity)
    unfinished.replace(staged)


def _copy_all(
    folder: Path,
    destination: Path,
    sizes: Mapping[str, int],
    shards: Mapping[str, Shard],
    manifest: Manifest | None,
    num_threads: int,
) -> None:
    """Copy the files in `sizes`, several at a time."""
    total = sum(sizes.values())
    free = shutil.disk_usage(destination).free
    if total > free:
        raise RuntimeFailure(f"{destination} has {free:,} bytes free, and {total:,} are to be copied to it: make room")
    if not sizes:
        _say(f"{destination} has the checkpoint already")
        return
    progress = _Progress(total)
    threads = ThreadPoolExecutor(num_threads)
    try:
        copies = [
            threads.submit(_copy, folder / name, destination / name, _pieces(shards.get(name), manifest), progress)
            for name in sizes
        ]
        for copy in copies:
            copy.result()
    finally:  # what has not begun is not waited for
        threads.shutdown(cancel_futures=True)
    checked = "compared with its manifest" if manifest else f"not compared: it has no {MANIFEST}"
    _say(f"copied {total / 1e9:,.1f} GB from {folder} to {destination}, {checked}")


def _pieces(shard: Shard | None, manifest: Manifest | None) -> Sequence[_Piece]:
    """The tensors of a file in the order in which they lie there, without gaps; nothing to compare without a manifest.

    Its header was compared before.
    """
    if shard is None or manifest is None:
        return ()
    digests = manifest.files[shard.path.name].tensors
    tensors = sorted(shard.tensors.items(), key=lambda named: (named[1].start, named[1].num_bytes))
    header = _Piece("", shard.num_bytes - sum(tensor.num_bytes for tensor in shard.tensors.values()), "")
    return [header, *(_Piece(name, tensor.start + tensor.num_bytes, digests[name]) for name, tensor in tensors)]


def _copy(source: Path, destination: Path, pieces: Sequence[_Piece], progress: "_Progress") -> None:
    """Copy one file, under another name until it is whole. Raises CheckpointError, and OSError about `destination`."""
    partial = destination.with_name(f".{destination.name}.partial")
    check = _Check(source, pieces)
    with partial.open("wb") as file:
        for part in _parts(source):
            check.take(part)
            file.write(part)
            progress.add(len(part))
        file.flush()
        os.fsync(file.fileno())
    partial.chmod(0o644)  # ranks are another user
    partial.replace(destination)


def _parts(path: Path) -> Iterator[bytes]:
    """The bytes of a file. Raises CheckpointError: what cannot be read is the source."""
    try:
        with open_file(path) as file:
            while part := file.read(PART_BYTES):
                yield part
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None


class _Check:
    """Compares the tensors of a file with their digests while its bytes go by."""

    def __init__(self, path: Path, pieces: Sequence[_Piece]) -> None:
        self._path = path
        self._left = list(reversed(pieces))
        self._at = 0
        self._hash = hashlib.sha256()

    def take(self, part: bytes) -> None:
        """Take the next bytes. Raises CheckpointError at the end of a tensor that is another."""
        rest = memoryview(part)
        while rest and self._left:
            piece = self._left[-1]
            own = rest[: piece.end - self._at]
            self._hash.update(own)
            self._at += len(own)
            rest = rest[len(own) :]
            while self._left and self._left[-1].end == self._at:  # tensors may be empty
                self._compare(self._left.pop())

    def _compare(self, piece: _Piece) -> None:
        found, self._hash = f"sha256:{self._hash.hexdigest()}", hashlib.sha256()
        if piece.digest and found != piece.digest:
            where = f"{self._path}: {piece.name} is {found}, and {piece.digest} in {MANIFEST}"
            raise CheckpointError(f"{where}: copy the checkpoint there again")


class _Progress:
    """Says on stderr how far the copy is, one line at a time: a pod's log is no terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._lock = total, 0, Lock()
        self._began = self._said = time.monotonic()

    def add(self, num_bytes: int) -> None:
        """Count bytes that are copied."""
        with self._lock:
            self._done += num_bytes
            now = time.monotonic()
            if now - self._said < SAY_EVERY_S:
                return
            self._said = now
            rate = self._done / (now - self._began)
            left_s = (self._total - self._done) / rate
        amount = f"{self._done / 1e9:,.1f} of {self._total / 1e9:,.1f} GB"
        _say(f"copied {amount}, {rate / 1e9:.2f} GB/s, {left_s:,.0f} s left")


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _say(sentence: str) -> None:
    print(f"tidemill: {sentence}", file=sys.stderr, flush=True)

"""`python -m runtime stage`: copy a checkpoint to a node's own disk before its ranks load it.

A pod's first container runs it, each time that the pod starts. So a copy that is there is found within a moment, one
that was interrupted goes on, and of two pods on one node the second waits for the first.

    .NAME.partial       a file on its way; it gets its name once it is whole and on the disk
    .tidemill-staged    which source the files are of: its files, their sizes and times, and its manifest

Where the checkpoint has a manifest, the bytes of every tensor are compared with it while they are copied. Ranks compare
the copy again as they load it: the manifest is copied too.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runtime.checkpoint.copying import copy_files, say
from runtime.checkpoint.folder import digest_of_bytes, resolve
from runtime.checkpoint.manifest import MANIFEST, read_manifest
from runtime.checkpoint.tensors import read_shards
from runtime.errors import RuntimeFailure

__all__ = ["stage"]

STAGED = ".tidemill-staged"
LOCK = ".tidemill-stage.lock"


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
            copy_files(folder, destination, {name: sizes[name] for name in missing}, shards, manifest, num_threads)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {error.filename or destination}: {error.strerror}") from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other pods of this node out, which may stage the same. The kernel lets go of the lock with the process."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another pod that copies to {folder}")
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


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None

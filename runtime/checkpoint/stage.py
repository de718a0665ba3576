"""`python -m runtime stage`: copy a checkpoint to a node's own disk before its ranks load it.

A pod's init container runs it each time the pod starts. It recognises a complete copy at once, and continues an
interrupted one. If two pods on one node run it, the second waits for the first.

    .NAME.partial       an incomplete file; it gets its name once it is whole and on the disk
    .tidemill-staged    the source of the files: their names, sizes and times, and its manifest

It removes only files that `.tidemill-staged` lists, and refuses a folder with others. If the checkpoint has a manifest,
files are compared with it as they are copied. The manifest is copied too, so ranks compare again as they load.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.checkpoint.copying import copy_files, partial_name, replace_file, say
from runtime.checkpoint.folder import bytes_digest, read_bytes, read_json, resolve
from runtime.checkpoint.manifest import MANIFEST, read_manifest
from runtime.checkpoint.tensors import Shard, read_shards
from runtime.errors import CheckpointError, RuntimeFailure

__all__ = ["stage"]

OWN = ".tidemill-stage"  # how the names of staging's own files begin
STAGED = f"{OWN}d"
LOCK = f"{OWN}.lock"


def stage(source: str, destination: Path, num_threads: int) -> None:
    """Make `destination` a copy of the checkpoint at `source`.

    Raises CheckpointError if the source is wrong, and RuntimeFailure if the destination cannot be used.
    """
    folder = resolve(source)
    shards = read_shards(folder)
    manifest = read_manifest(folder)
    if manifest is not None:
        manifest.check_headers(shards)
    files = _list_files(folder)
    _refuse_links_elsewhere(folder, list(files))
    _refuse_changed(shards, files)
    _refuse_overlap(folder, destination)
    try:
        destination.mkdir(parents=True, exist_ok=True)
        with _lock_folder(destination):
            _forget_other_sources(destination, _source_record(folder, files))
            missing = {
                name: file.st_size for name, file in files.items() if _copied_size(destination / name) != file.st_size
            }
            copy_files(folder, destination, missing, {each.path.name: each for each in shards}, manifest, num_threads)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {error.filename or destination}: {error.strerror}") from None


def _list_files(folder: Path) -> dict[str, os.stat_result]:
    """Return name -> stat result of the source's files, without files that staging itself writes.

    Raises CheckpointError if they cannot be read.
    """
    try:
        paths = [path for path in sorted(folder.iterdir()) if not _is_own(path.name) and path.is_file()]
        return {path.name: path.stat() for path in paths}
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename or folder}: {error.strerror}") from None


def _is_own(name: str) -> bool:
    return name.startswith(OWN) or (name.startswith(".") and name.endswith(".partial"))


def _refuse_links_elsewhere(folder: Path, names: Sequence[str]) -> None:
    """Raises CheckpointError for links that lead out of the checkpoint's folder.

    A link may stay in the folder or, in the layout of Hugging Face's cache, lead to `../../blobs`. Source: Hub
    documentation, "Hub Local Cache".
    """
    whole = Path(os.path.realpath(folder))
    blobs = Path(os.path.realpath(whole.parent.parent / "blobs"))
    for name in names:
        target = Path(os.path.realpath(whole / name))
        if whole not in target.parents and target.parent != blobs:
            fix = "copy the file there, or stage the folder that has it"
            raise CheckpointError(f"{folder / name} is a link to {target}, outside the checkpoint's folder: {fix}")


def _refuse_changed(shards: Sequence[Shard], files: Mapping[str, os.stat_result]) -> None:
    """Raises CheckpointError if the checkpoint has changed since its headers were read, a moment ago."""
    for shard in shards:
        file = files.get(shard.path.name)
        if file is None:
            raise CheckpointError(f"{shard.path} cannot be staged: it is gone, or has a name that staging itself uses")
        if file.st_size != shard.num_bytes:
            sizes = f"from {shard.num_bytes:,} bytes to {file.st_size:,}"
            raise CheckpointError(f"{shard.path} changed {sizes} while it was read: stage it once it is whole")


def _refuse_overlap(folder: Path, destination: Path) -> None:
    """Raises RuntimeFailure if a folder would be copied over itself, also through links or two mounts."""
    if _is_inside(folder, destination) or _is_inside(destination, folder):
        where = "the same folder, or one is in the other"
        raise RuntimeFailure(f"{folder} and {destination} are {where}: name a folder elsewhere for the copy")


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether `path` is `folder` or below it. Either may be missing."""
    whole = Path(os.path.realpath(path))
    above = [each for each in (whole, *whole.parents) if os.path.exists(each)]
    return os.path.exists(folder) and any(os.path.samefile(each, folder) for each in above)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against other pods of this node, after waiting for one that has locked it.

    The kernel drops the lock when the process ends. Raises RuntimeFailure if the lock's file is no regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # otherwise opening a FIFO would block
    with os.fdopen(os.open(folder / LOCK, flags, 0o644), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RuntimeFailure(f"{folder / LOCK} is not a regular file: remove it")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another pod that copies to {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _source_record(folder: Path, files: Mapping[str, os.stat_result]) -> dict[str, Any]:
    """Return the names, sizes and times of the source's files, and its manifest's digest.

    They tell the files from other files, even of the same sizes, without a look at what is in them.
    """
    return {
        "files": {name: file.st_size for name, file in files.items()},
        "times": {name: file.st_mtime_ns for name, file in files.items()},
        "manifest": bytes_digest(read_bytes(folder / MANIFEST)) if MANIFEST in files else None,
    }


def _forget_other_sources(destination: Path, identity: Mapping[str, Any]) -> None:
    """Remove files that came from another source, and record `identity`, the source of the files to be copied now.

    If the record has this source already, all files stay. Raises RuntimeFailure if the folder has files that staging
    did not copy.
    """
    known = _read_record(destination)
    if known == identity:
        return
    written = {*known["files"], STAGED}
    ours = written | {partial_name(name) for name in written}
    there = [path for path in destination.iterdir() if path.is_symlink() or not path.is_dir()]
    there = sorted(path for path in there if not path.name.startswith(OWN))
    if others := [path.name for path in there if path.name not in ours]:
        has = f"has files that staging did not copy, such as {others[0]}"
        raise RuntimeFailure(f"{destination} {has}: empty it, or name another folder for the copy")
    _write_record(destination, {"files": known["files"]})  # a half-removed copy belongs to no source
    for path in there:
        path.unlink()
    _write_record(destination, identity)


def _read_record(destination: Path) -> dict[str, Any]:
    """Return the record of staged files; an empty one if there is none. Raises RuntimeFailure for a foreign file."""
    path = destination / STAGED
    if not os.path.lexists(path):
        return {"files": {}}
    try:
        record = read_json(path)
    except CheckpointError as error:
        raise RuntimeFailure(f"{error}: empty {destination}") from None
    if not isinstance(record.get("files"), dict):
        raise RuntimeFailure(f"{path} has no files: empty {destination}")
    return record


def _write_record(destination: Path, record: Mapping[str, Any]) -> None:
    with replace_file(destination / STAGED) as file:
        file.write(json.dumps(record).encode())


def _copied_size(path: Path) -> int | None:
    """Return the size of a file; None if it is missing or a link: staging never writes links."""
    return path.stat().st_size if path.is_file() and not path.is_symlink() else None

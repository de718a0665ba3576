"""The manifest: digests of every file of a checkpoint, written once and compared wherever a rank loads.

`tidemill checkpoint digest` writes it beside `config.json`. It has a digest for each tensor, because a rank reads only
the tensors of its own experts, and never a whole file. The digests are of the stored bytes, so they hold at any
precision.

    config_digest    sha256 of config.json
    files            file -> its bytes, the sha256 of its header, and of each tensor's bytes

The file is canonical: equal checkpoints have equal manifests. The sha256 of its bytes identifies the weights; launch
files call it `weights_digest`.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from runtime.checkpoint.folder import bytes_digest, config_digest, read_bytes
from runtime.checkpoint.tensors import Shard, StoredTensor
from runtime.errors import CheckpointError, RuntimeFailure

__all__ = ["MANIFEST", "Manifest", "check_weights_digest", "make_manifest", "read_manifest", "write_manifest"]

MANIFEST = "tidemill-checkpoint.json"
WRITE_AGAIN = "write it again with tidemill checkpoint digest"
PART_BYTES = 8 * 2**20


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The digests of one file's content."""

    num_bytes: int = msgspec.field(name="bytes")
    header: str
    tensors: dict[str, str]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The digests of the content of a checkpoint's files."""

    version: Literal[1]
    config_digest: str
    files: dict[str, _File]

    @property
    def tensors(self) -> dict[str, str]:
        """Tensor name -> its digest, over all files."""
        return {name: digest for file in self.files.values() for name, digest in file.tensors.items()}

    def check_headers(self, shards: Sequence[Shard]) -> None:
        """Raises CheckpointError if the files have other names, sizes or headers than the manifest's."""
        found = {shard.path.name: shard for shard in shards}
        for name in sorted(found.keys() ^ self.files.keys()):
            where = "the folder" if name in found else MANIFEST
            raise CheckpointError(f"{shards[0].path.parent}: {name} is in {where} only: copy the checkpoint again")
        for name, shard in found.items():
            expected = self.files[name]
            if shard.num_bytes != expected.num_bytes:
                sizes = f"{shard.num_bytes:,} bytes, and {expected.num_bytes:,} in {MANIFEST}"
                raise CheckpointError(f"{shard.path} has {sizes}: copy it again")
            if shard.header_digest != expected.header or shard.tensors.keys() != expected.tensors.keys():
                raise CheckpointError(f"{shard.path} has another header than {MANIFEST} says: copy it again")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the folder's manifest; None if it has none.

    Raises CheckpointError if the manifest cannot be read or is of another config.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    try:
        manifest = msgspec.json.decode(read_bytes(path), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no manifest that this version reads: {error}: {WRITE_AGAIN}") from None
    if manifest.config_digest != config_digest(folder):
        raise CheckpointError(f"{path} is the manifest of another config.json: {WRITE_AGAIN}")
    return manifest


def check_weights_digest(folder: Path, digest: str | None) -> None:
    """Raises CheckpointError if the plan names a digest and the weights have another."""
    if digest is None:
        return
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise CheckpointError(f"{path} is not there, and the plan was made for weights {digest}: copy it as well")
    found = bytes_digest(read_bytes(path))
    if found != digest:
        raise CheckpointError(f"{path} is {found}, the plan was made for {digest}: plan again, or copy the right one")


def make_manifest(folder: Path, shards: Sequence[Shard], num_threads: int, progress: Callable[[int], None]) -> Manifest:
    """Read every byte of open shards, `num_threads` tensors at a time, and return the digests.

    `progress(n)` is called when n more bytes are read. Raises CheckpointError if a file cannot be read.
    """
    stored = [(shard.path.name, name, tensor) for shard in shards for name, tensor in shard.tensors.items()]
    threads = ThreadPoolExecutor(num_threads)
    try:
        digests = list(threads.map(partial(_digest, progress=progress), (tensor for _, _, tensor in stored)))
    finally:  # also after Ctrl-C, without waiting for tensors that have not begun
        threads.shutdown(cancel_futures=True)
    files: dict[str, dict[str, str]] = {shard.path.name: {} for shard in shards}
    for (file, name, _), digest in zip(stored, digests, strict=True):
        files[file][name] = digest
    return Manifest(
        1,
        config_digest(folder),
        {shard.path.name: _File(shard.num_bytes, shard.header_digest, files[shard.path.name]) for shard in shards},
    )


def write_manifest(manifest: Manifest, path: Path) -> str:
    """Write the manifest atomically. Return the sha256 of its bytes. Raises RuntimeFailure if it cannot be written."""
    content = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1) + b"\n"
    try:
        _write(content, path)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {path}: {error.strerror}: name another file with -o") from None
    return bytes_digest(content)


def _write(content: bytes, path: Path) -> None:
    if path.exists() and not path.is_file():  # a device, such as /dev/stdout, is written to, never replaced
        path.write_bytes(content)
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _digest(tensor: StoredTensor, progress: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    for first in range(0, tensor.num_bytes, PART_BYTES):
        part = bytearray(min(PART_BYTES, tensor.num_bytes - first))
        tensor.file.read_into(part, tensor.start + first)
        digest.update(part)
        progress(len(part))
    return "sha256:" + digest.hexdigest()

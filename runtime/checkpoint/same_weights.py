"""Tell from a few bytes a file whether two ranks read the same weights.

With a manifest, every rank has held what it read against it, and equal manifests are equal weights. Without one, ranks
compare config.json, the size and the header of each file, and the tensors that all of them read: everything but routed
experts. An expert is read by the ranks that hold it, so a wrong one is found by the manifest only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runtime.checkpoint.folder import digest_of_bytes, read_bytes
from runtime.checkpoint.manifest import MANIFEST
from runtime.checkpoint.tensors import Shard
from runtime.errors import CheckpointError

__all__ = ["Files", "check_same_files", "compared_files"]

CONFIG = "config.json"

Files = dict[str, tuple[int, str]]  # name -> size, and the digest of what all ranks read of it


def compared_files(folder: Path, shards: Sequence[Shard], common: Mapping[str, str], has_manifest: bool) -> Files:
    """Return this rank's files as it found them. `common`: the digests of the tensors that every rank reads."""
    if has_manifest:
        content = read_bytes(folder / MANIFEST)
        return {MANIFEST: (len(content), digest_of_bytes(content))}
    config = read_bytes(folder / CONFIG)
    read = {shard.path.name: (shard.num_bytes, _digest_of_shard(shard, common)) for shard in shards}
    return read | {CONFIG: (len(config), digest_of_bytes(config))}


def check_same_files(own: Files, own_name: str, others: Files, other_name: str) -> None:
    """Refuse weights that differ, naming the first file that does, and both ranks. Raise CheckpointError."""
    for name in sorted(own.keys() | others.keys(), key=lambda name: (name != MANIFEST, name)):
        if own.get(name) != others.get(name):
            raise CheckpointError(
                f"{own_name} reads other weights than {other_name}: {name} is {_described(own.get(name))}, not"
                f" {_described(others.get(name))}: copy the checkpoint again; tidemill checkpoint digest makes a"
                " manifest that says which copy is right"
            )


def _digest_of_shard(shard: Shard, common: Mapping[str, str]) -> str:
    read = {name: common[name] for name in shard.tensors if name in common}
    return digest_of_bytes(msgspec.json.encode([shard.header_digest, read], order="sorted"))


def _described(file: tuple[int, str] | None) -> str:
    if file is None:
        return "missing"
    num_bytes, digest = file
    return f"{num_bytes:,} bytes with {digest[:19]}"

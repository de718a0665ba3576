"""Checks that ranks read the same weights, although no rank can see another's files.

Each rank digests the stored bytes that it reads, and combines the digests by part:

    config.json                         the file
    model.layers.3.mlp.experts.17       one routed expert in one layer: all its holders must have read the same
    model.layers.3, lm_head.weight      the rest of a layer, and tensors outside layers: every rank reads these

The digest over all parts of a unit identifies its weights. It does not depend on ranks' shares, the expert map or how
shards are cut: units that read the same tensors have the same digest. With a manifest, every rank has compared its
tensors with it, so the manifest's digest stands for all parts.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runtime.checkpoint.folder import bytes_digest, config_digest, read_bytes
from runtime.checkpoint.manifest import MANIFEST
from runtime.checkpoint.tensors import StoredTensor
from runtime.errors import CheckpointError

__all__ = ["Parts", "ReadWeights", "agreed_weights", "digest_parts"]

CONFIG = "config.json"
EXPERT, LAYER = re.compile(r".+\.experts\.\d+(?=\.)"), re.compile(r".+\.layers\.\d+(?=\.)")
KEPT = 19  # characters of a part's digest: `sha256:` and twelve, because each rank gets the digests of all ranks
MORE = "tidemill checkpoint digest makes a manifest that says which copy is right"

Parts = dict[str, str]  # part -> digest of the bytes read


class ReadWeights(msgspec.Struct, frozen=True):
    """The digests of what one rank read, by part: common parts, which every rank of a unit reads, and its experts."""

    rank: str
    common: Parts
    experts: Parts


def digest_parts(
    rank: str, folder: Path, index: Mapping[str, StoredTensor], found: Mapping[str, str], *, has_manifest: bool
) -> ReadWeights:
    """Return the digests of what a rank read, by part (see the module): of tensors, from `found`, and of config.json.

    With a manifest, return only the manifest's digest. Raises CheckpointError if the manifest or config cannot be read.
    """
    if has_manifest:
        return ReadWeights(rank, {MANIFEST: bytes_digest(read_bytes(folder / MANIFEST))}, {})
    tensors: dict[str, dict[str, tuple[str, tuple[int, ...], str]]] = defaultdict(dict)
    for name, digest in found.items():
        tensors[_part(name)][name] = index[name].dtype, index[name].shape, digest
    parts = {part: bytes_digest(msgspec.json.encode(each, order="sorted"))[:KEPT] for part, each in tensors.items()}
    experts = {part: digest for part, digest in parts.items() if EXPERT.match(f"{part}.")}
    common = {part: digest for part, digest in parts.items() if part not in experts}
    return ReadWeights(rank, common | {CONFIG: config_digest(folder)}, experts)


def agreed_weights(ranks: Sequence[ReadWeights]) -> str:
    """Return the digest of the weights that all ranks of a unit have read together.

    Raises CheckpointError, with the part and both ranks, if two ranks read different ones.
    """
    first = ranks[0]
    holders: dict[str, ReadWeights] = {}
    for rank in ranks:
        for part in sorted(first.common.keys() | rank.common.keys()):
            _require_same(part, rank, rank.common.get(part), first, first.common.get(part))
        for part, digest in rank.experts.items():
            holder = holders.setdefault(part, rank)
            _require_same(part, rank, digest, holder, holder.experts[part])
    experts = {part: holder.experts[part] for part, holder in holders.items()}
    return bytes_digest(msgspec.json.encode([first.common, experts], order="sorted"))


def _part(tensor: str) -> str:
    found = EXPERT.match(tensor) or LAYER.match(tensor)
    return tensor if found is None else found.group()


def _require_same(part: str, rank: ReadWeights, digest: str | None, other: ReadWeights, others: str | None) -> None:
    if digest != others:
        raise CheckpointError(
            f"{rank.rank} reads other weights than {other.rank}: {part} is {_describe(digest)}, not"
            f" {_describe(others)}: copy the checkpoint again; {MORE}"
        )


def _describe(digest: str | None) -> str:
    return "missing" if digest is None else digest[:KEPT]

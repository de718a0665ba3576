"""The checksum of each expert of a unit, by which ranks judge what arrives and what their slots hold.

Before a unit's first switch each rank measures the experts in its slots, which hold what was loaded, and all learn all
checksums. From then on an expert is right where its bytes have its checksum: in staging, and in a slot after the last
round. So one wrong byte of one expert is found wherever it came about, be it at a source, on the way, in staging or in
a slot, whereas a token through this expert may give the same bits.

A checksum is a sum of products modulo 2**64, which a GPU takes of its own memory as fast as it reads it. CRC-32 would
need a copy of every expert on the host, and longer than a step. Each word of four bytes counts by an odd factor of its
own, so one wrong word always changes the sum; any other damage passes once in about 2**64 (assumed).
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from runtime.errors import StagingError
from runtime.expert_parallel.group import Group

__all__ = ["Checksums", "MovableLayer", "as_bytes", "check_slots", "checksum", "learn_checksums"]

Checksums = list[dict[int, int]]  # MoE layer -> expert -> checksum

WORDS_OF_PIECE = 2**16  # of whose products a CPU's cache has room: 0.16 s a GB on one core, and 1.5 with 2**18
PIECES_AT_ONCE = {"cpu": 1, "cuda": 64}  # assumed: 16 MiB keep a GPU busy
ODD = 0x1E3779B97F4A7C15  # assumed: any odd number with many ones


class MovableLayer(Protocol):
    """One MoE layer of a rank, whose slots may get other experts."""

    def expert_tensors(self, slot: int) -> dict[str, Tensor]:
        """Return the memory of the expert in a local slot, by name. Each tensor is contiguous, of whole words."""

    def follow(self, physical_to_logical: list[int]) -> None:
        """Let tokens follow this map, and count rows by it."""


def learn_checksums(group: Group, layers: Sequence[MovableLayer], maps: Sequence[Sequence[int]]) -> Checksums:
    """Return the checksum of each expert in each layer, from the slots that hold the expert by `maps`. A collective.

    Raises StagingError, on all ranks, if two slots of one expert differ.
    """
    own = [_measure(layer, len(experts) // group.size) for layer, experts in zip(layers, maps, strict=True)]
    ranks = [msgspec.json.decode(each, type=list[list[int]]) for each in group.gather(msgspec.json.encode(own))]
    found: Checksums = []
    for number, experts in enumerate(maps):
        found.append({})
        for slot, (expert, measured) in enumerate(
            zip(experts, (each for rank in ranks for each in rank[number]), strict=True)
        ):
            if found[-1].setdefault(expert, measured) != measured:
                raise StagingError(f"slot {slot} of MoE layer {number} differs from another slot of expert {expert}")
    return found


def check_slots(
    group: Group, layers: Sequence[MovableLayer], maps: Sequence[Sequence[int]], checksums: Checksums
) -> None:
    """Raises StagingError if a slot of this rank does not hold the expert that `maps` gives it."""
    for number, (layer, experts) in enumerate(zip(layers, maps, strict=True)):
        slots_per_rank = len(experts) // group.size
        first = group.rank * slots_per_rank
        for slot, measured in enumerate(_measure(layer, slots_per_rank), first):
            if measured != checksums[number][experts[slot]]:
                raise StagingError(
                    f"slot {slot} of MoE layer {number} does not hold expert {experts[slot]} as the unit loaded it"
                )


def as_bytes(expert: dict[str, Tensor]) -> list[Tensor]:
    """Return an expert's tensors as vectors of bytes in the same memory."""
    return [tensor.view(-1).view(torch.uint8) for tensor in expert.values()]


def checksum(expert: dict[str, Tensor]) -> int:
    """Return the checksum of an expert's bytes, below 2**64. It is the same on a CPU and on a GPU."""
    sums = [sums for each in as_bytes(expert) for sums in _sums_of_pieces(each.view(torch.int32))]
    found = 0
    for each in torch.cat(sums).tolist():
        found = (found * ODD + each) % 2**64
    return found


def _sums_of_pieces(words: Tensor) -> Iterator[Tensor]:
    """Yield the sums of the pieces of `words`, in order, in batches whose size suits the device."""
    factors, num_whole = _factors(words.device), len(words) // WORDS_OF_PIECE * WORDS_OF_PIECE
    for pieces in words[:num_whole].view(-1, WORDS_OF_PIECE).split(PIECES_AT_ONCE[words.device.type]):
        yield (pieces.long() * factors).sum(1)
    if num_whole < len(words):
        rest = words[num_whole:].long()
        yield (rest * factors[: len(rest)]).sum(0, keepdim=True)


@cache
def _factors(device: torch.device) -> Tensor:
    return torch.arange(1, 2 * WORDS_OF_PIECE, 2, device=device) * ODD


def _measure(layer: MovableLayer, num_slots: int) -> list[int]:
    return [checksum(layer.expert_tensors(slot)) for slot in range(num_slots)]

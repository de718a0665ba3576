"""The checksum of each expert of a unit, by which ranks judge what arrives and what their slots hold.

Before a unit's first switch each rank measures the experts in its slots, which hold what was loaded, and all learn all
checksums. From then on an expert is right where its bytes have its checksum: in staging, and in a slot after the last
round. So one wrong byte of one expert is found wherever it came about, be it at a source, on the way, in staging or in
a slot, whereas a token through this expert may give the same bits.
"""

import zlib
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from runtime.errors import StagingError
from runtime.expert_parallel.group import Group

__all__ = ["Checksums", "MovableLayer", "as_bytes", "check_slots", "checksum", "learn_checksums"]

Checksums = list[dict[int, int]]  # MoE layer -> expert -> CRC-32


class MovableLayer(Protocol):
    """One MoE layer of a rank, whose slots may get other experts."""

    def expert_tensors(self, slot: int) -> dict[str, Tensor]:
        """Return the memory of the expert in a local slot, by name. Each tensor is contiguous and on the CPU."""

    def follow(self, physical_to_logical: list[int]) -> None:
        """Let tokens follow this map, and count rows by it."""


def learn_checksums(group: Group, layers: Sequence[MovableLayer], maps: Sequence[Sequence[int]]) -> Checksums:
    """Return the checksums of all experts, which the unit holds as in `maps`. A collective.

    Raises StagingError, on all ranks, if two slots of one expert differ.
    """
    own = [_measure(layer, len(experts) // group.size) for layer, experts in zip(layers, maps, strict=True)]
    ranks = [msgspec.json.decode(each, type=list[list[int]]) for each in group.gather(msgspec.json.encode(own))]
    found: Checksums = []
    for number, experts in enumerate(maps):
        found.append({})
        for slot, (expert, crc) in enumerate(
            zip(experts, (crc for rank in ranks for crc in rank[number]), strict=True)
        ):
            if found[-1].setdefault(expert, crc) != crc:
                raise StagingError(f"slot {slot} of MoE layer {number} differs from another slot of expert {expert}")
    return found


def check_slots(
    group: Group, layers: Sequence[MovableLayer], maps: Sequence[Sequence[int]], checksums: Checksums
) -> None:
    """Raises StagingError if a slot of this rank does not hold its expert of `maps`."""
    for number, (layer, experts) in enumerate(zip(layers, maps, strict=True)):
        slots_per_rank = len(experts) // group.size
        first = group.rank * slots_per_rank
        for slot, crc in enumerate(_measure(layer, slots_per_rank), first):
            if crc != checksums[number][experts[slot]]:
                raise StagingError(
                    f"slot {slot} of MoE layer {number} does not hold expert {experts[slot]} as the unit loaded it"
                )


def as_bytes(expert: dict[str, Tensor]) -> list[Tensor]:
    """Return an expert's tensors as vectors of bytes in the same memory."""
    return [tensor.view(-1).view(torch.uint8) for tensor in expert.values()]


def checksum(expert: dict[str, Tensor]) -> int:
    """Return the CRC-32 of an expert's bytes."""
    crc = 0
    for each in as_bytes(expert):
        crc = zlib.crc32(each.numpy().data, crc)
    return crc


def _measure(layer: MovableLayer, num_slots: int) -> list[int]:
    return [checksum(layer.expert_tensors(slot)) for slot in range(num_slots)]

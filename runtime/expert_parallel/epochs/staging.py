"""A rank's staging: the memory in which it receives a round's experts before they take effect in its slots.

Experts travel on the group's second connection, so no row of a step waits behind them. Each comes with the CRC-32 of
what its source holds, and what arrived is compared before it counts. An expert whose source is the rank itself takes
the same way, without the connection.

Slots are read while steps compute with them, and written only between steps.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from runtime.errors import StagingError
from runtime.expert_parallel.epochs.moves import Move, Round
from runtime.expert_parallel.group import Group

__all__ = ["MovableLayer", "Staging"]


class MovableLayer(Protocol):
    """One MoE layer of a rank, whose slots may get other experts."""

    def expert_tensors(self, slot: int) -> dict[str, Tensor]:
        """Return the memory of the expert in a local slot, by name. Each tensor is contiguous and on the CPU."""

    def follow(self, physical_to_logical: list[int]) -> None:
        """Let tokens follow this map, and count rows by it."""


class Staging:
    """Room for `num_experts` of one rank."""

    def __init__(self, group: Group, layers: Sequence[MovableLayer], slots_per_rank: int, num_experts: int) -> None:
        self._group, self._layers, self._slots_per_rank = group, layers, slots_per_rank
        expert = layers[0].expert_tensors(0)
        self._room = [{name: torch.empty_like(each) for name, each in expert.items()} for _ in range(num_experts)]

    def own_moves(self, round_: Round) -> list[Move]:
        """Return the moves into this rank's slots."""
        return [move for move in round_.moves if self._rank(move.slot) == self._group.rank]

    def fetch(self, layer: int, round_: Round) -> int:
        """Bring the experts of this rank's moves into staging, and send others theirs. Return the bytes received.

        A collective, for one thread beside the steps. Raise StagingError and PeerLost.
        """
        sends: list[tuple[int, Tensor]] = []
        receives: list[tuple[int, Tensor]] = []
        checksums = []
        for move in round_.moves:
            if self._rank(move.source) == self._group.rank != self._rank(move.slot):
                held = self._held(layer, move.source)
                sends += [(self._rank(move.slot), each) for each in (*held, _checksum(held))]
        for move, room in self._arrivals(round_):
            if self._rank(move.source) == self._group.rank:
                held = self._held(layer, move.source)
                for each, source in zip(_as_bytes(room), held, strict=True):
                    each.copy_(source)
                checksums.append(_checksum(held))
            else:
                checksums.append(torch.zeros(1, dtype=torch.long))
                receives += [(self._rank(move.source), each) for each in (*_as_bytes(room), checksums[-1])]
        self._group.trade(sends, receives)
        self._compare(layer, round_, checksums)
        return sum(each.nbytes for _, each in receives)

    @torch.no_grad()
    def take_effect(self, layer: int, round_: Round) -> None:
        """Copy what is staged into its slots, and let tokens follow the layer's map."""
        for move, room in self._arrivals(round_):
            for name, each in self._layers[layer].expert_tensors(move.slot % self._slots_per_rank).items():
                each.copy_(room[name])
        self._layers[layer].follow(round_.physical_to_logical)

    def _compare(self, layer: int, round_: Round, checksums: Sequence[Tensor]) -> None:
        for (move, room), checksum in zip(self._arrivals(round_), checksums, strict=True):
            if not torch.equal(_checksum(_as_bytes(room)), checksum):
                raise StagingError(
                    f"expert {move.expert} of MoE layer {layer} arrived at rank {self._group.rank} with another"
                    f" checksum than rank {self._rank(move.source)} computed"
                )

    def _arrivals(self, round_: Round) -> Iterator[tuple[Move, dict[str, Tensor]]]:
        return zip(self.own_moves(round_), self._room, strict=False)

    def _held(self, layer: int, slot: int) -> list[Tensor]:
        return _as_bytes(self._layers[layer].expert_tensors(slot % self._slots_per_rank))

    def _rank(self, slot: int) -> int:
        return slot // self._slots_per_rank


def _as_bytes(expert: dict[str, Tensor]) -> list[Tensor]:
    return [tensor.view(-1).view(torch.uint8) for tensor in expert.values()]


def _checksum(expert: Sequence[Tensor]) -> Tensor:
    """Return the CRC-32 of an expert's bytes, [1]."""
    crc = 0
    for each in expert:
        crc = zlib.crc32(each.numpy().data, crc)
    return torch.tensor([crc])

"""A rank's staging: the host memory in which it receives a round's experts before they take effect in its slots.

Experts travel on the group's second connection, so no row of a step waits behind them. What arrived is compared with
the expert's checksum (`checksums.py`) before it counts. An expert whose source is the rank itself takes the same way,
without the connection.

Slots are read while steps compute with them, and written only between steps. What they held lies in staging until
their new experts are compared once more, so that a round with a wrong byte takes no effect at all.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from runtime.errors import StagingError
from runtime.expert_parallel.epochs.checksums import Checksums, MovableLayer, as_bytes, checksum
from runtime.expert_parallel.epochs.moves import Move, Round
from runtime.expert_parallel.group import Group
from runtime.kernels.device import HostLink

__all__ = ["Staging"]

PIECE_BYTES = 2**20  # of an exchange: it needs a copy, which must not be another expert in size


class Staging:
    """Host memory in which one rank receives up to `num_experts` experts.

    A switch takes no other memory, except for pieces of PIECE_BYTES.
    """

    def __init__(
        self, group: Group, layers: Sequence[MovableLayer], slots_per_rank: int, num_experts: int, link: HostLink
    ) -> None:
        self._group, self._layers, self._slots_per_rank, self._link = group, layers, slots_per_rank, link
        expert = layers[0].expert_tensors(0)
        self._room = [
            {name: link.empty(each.shape, each.dtype) for name, each in expert.items()} for _ in range(num_experts)
        ]

    def own_moves(self, round_: Round) -> list[Move]:
        """Return the moves into this rank's slots."""
        return [move for move in round_.moves if self._rank(move.slot) == self._group.rank]

    def fetch(self, layer: int, round_: Round, checksums: Checksums) -> int:
        """Bring the experts of this rank's moves into staging, and send other ranks the experts of their moves.

        Return the bytes received. A collective, for one thread beside the steps. Raises StagingError if an expert
        arrives damaged, and PeerLost if a rank is gone.
        """
        sends: list[tuple[int, Tensor]] = []
        receives: list[tuple[int, Tensor]] = []
        for move in round_.moves:
            if self._rank(move.source) == self._group.rank != self._rank(move.slot):
                held = self._expert_bytes(layer, move.source)
                sends += [(self._rank(move.slot), self._link.to_host(each)) for each in held]
        for move, room in self._arrivals(round_):
            if self._rank(move.source) == self._group.rank:
                for each, source in zip(as_bytes(room), self._expert_bytes(layer, move.source), strict=True):
                    each.copy_(source)
            else:
                receives += [(self._rank(move.source), each) for each in as_bytes(room)]
        self._group.trade(sends, receives)
        for move, room in self._arrivals(round_):
            if checksum(room) != checksums[layer][move.expert]:
                raise StagingError(
                    f"expert {move.expert} of MoE layer {layer} came from rank {self._rank(move.source)} to rank"
                    f" {self._group.rank} with another checksum than when the unit loaded it"
                )
        return sum(each.nbytes for _, each in receives)

    @torch.no_grad()
    def take_effect(self, layer: int, round_: Round, checksums: Checksums) -> None:
        """Exchange the staged experts with those in their slots, and let tokens follow the layer's map.

        A collective. If a slot then holds a wrong expert, all ranks exchange back and raise StagingError.
        """
        self._exchange(layer, round_)
        wrong = [move for move, _ in self._arrivals(round_) if not self._is_right(layer, move, checksums)]
        if self._group.any(bool(wrong)):
            self._exchange(layer, round_)
            at = f"in slot {wrong[0].slot}, expert {wrong[0].expert}" if wrong else "at another rank an expert"
            raise StagingError(f"{at} of MoE layer {layer} had another checksum than when the unit loaded it")
        self._layers[layer].follow(round_.physical_to_logical)

    def _exchange(self, layer: int, round_: Round) -> None:
        for move, room in self._arrivals(round_):
            for held, staged in zip(self._expert_bytes(layer, move.slot), as_bytes(room), strict=True):
                for mine, other in zip(held.split(PIECE_BYTES), staged.split(PIECE_BYTES), strict=True):
                    former = mine.clone()
                    mine.copy_(other)
                    other.copy_(former)

    def _is_right(self, layer: int, move: Move, checksums: Checksums) -> bool:
        return checksum(self._expert(layer, move.slot)) == checksums[layer][move.expert]

    def _arrivals(self, round_: Round) -> Iterator[tuple[Move, dict[str, Tensor]]]:
        return zip(self.own_moves(round_), self._room, strict=False)

    def _expert_bytes(self, layer: int, slot: int) -> list[Tensor]:
        return as_bytes(self._expert(layer, slot))

    def _expert(self, layer: int, slot: int) -> dict[str, Tensor]:
        return self._layers[layer].expert_tensors(slot % self._slots_per_rank)

    def _rank(self, slot: int) -> int:
        return slot // self._slots_per_rank

"""Counts of the rows that one rank's experts received, and of the pairs that its tokens sent to each rank.

They are on the device of the rows, and a step only adds to them.

    rows    rows that each local slot computed. Summed by expert over all ranks, they are a logical expert's load
    sent    pairs that this rank's tokens have sent to each rank of the unit since the layer's map last changed. Their
            unevenness is the imbalance

Balancers read these counts; this file does not balance.
"""

import threading
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["ExpertLoad"]


class ExpertLoad:
    """Counts of (token, choice) pairs.

    `rows` is `[num_moe_layers, slots_per_rank]`, `sent` is `[num_moe_layers, num_ranks]`.
    """

    def __init__(self, local_experts: Tensor, num_ranks: int) -> None:
        """Start at 0. `local_experts` `[num_moe_layers, slots_per_rank]` is the logical expert in each slot here."""
        self.local_experts = local_experts
        self.rows = torch.zeros_like(local_experts)
        self.sent = local_experts.new_zeros(len(local_experts), num_ranks)
        self._former: dict[tuple[int, int, int], int] = {}  # MoE layer, slot, expert -> rows, of experts that left
        self._lock = threading.Lock()  # a scrape must not see a layer between two maps: counts would seem to fall
        self._rows_of_layer, self._sent_of_layer = list(self.rows), list(self.sent)

    def add(self, moe_layer: int, counts_M: Tensor, sent_W: Tensor) -> None:
        """Count one dispatch of one layer on the device, without a wait of the host."""
        self._rows_of_layer[moe_layer].add_(counts_M)
        self._sent_of_layer[moe_layer].add_(sent_W)

    def assign(self, moe_layer: int, experts: list[int]) -> None:
        """Count the rows in this rank's slots for the logical `experts` from now on.

        Rows counted earlier still count for the experts that got them. The layer's `sent` begins at 0 again.
        """
        layer = zip(self.local_experts[moe_layer].tolist(), experts, self.rows[moe_layer].tolist(), strict=True)
        with self._lock:
            for slot, (former, expert, rows) in enumerate(layer):
                if former != expert:
                    self._former[moe_layer, slot, former] = rows
                    self.rows[moe_layer, slot] = self._former.pop((moe_layer, slot, expert), 0)
            self.local_experts[moe_layer] = torch.tensor(experts)
            self.sent[moe_layer] = 0

    def counted_rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (MoE layer, slot, expert, rows) for each expert that a slot holds or has held."""
        with self._lock:
            local_experts, counted, left = self.local_experts.tolist(), self.rows.tolist(), list(self._former.items())
        for layer, (experts, counts) in enumerate(zip(local_experts, counted, strict=True)):
            for slot, (expert, rows) in enumerate(zip(experts, counts, strict=True)):
                yield layer, slot, expert, rows
        for place, rows in left:
            yield *place, rows

    def clear(self) -> None:
        """Start at 0 again, after counting steps that had no requests."""
        self.rows.zero_()
        self.sent.zero_()
        self._former.clear()

    def imbalance(self) -> Tensor:
        """Return each layer's imbalance, `[num_moe_layers]`: the most pairs that a rank got, over the mean.

        Without pairs it is 1.
        """
        mean = self.sent.float().mean(1)
        return (self.sent.amax(1) / mean).where(mean > 0, 1.0)

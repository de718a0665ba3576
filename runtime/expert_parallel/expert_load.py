"""Counts of the rows that one rank's experts received, and of the pairs that its tokens sent to each rank.

They are on the device of the rows, and a step only adds to them.

    rows    rows that each local slot computed. Summed by expert over all ranks, they are a logical expert's load
    sent    pairs that this rank's tokens sent to each rank of the unit. Their unevenness is the imbalance

Balancers read these counts; this file does not balance.
"""

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
        self._rows_of_layer, self._sent_of_layer = list(self.rows), list(self.sent)

    def add(self, moe_layer: int, counts_M: Tensor, sent_W: Tensor) -> None:
        """Count one dispatch of one layer on the device, without a wait of the host."""
        self._rows_of_layer[moe_layer].add_(counts_M)
        self._sent_of_layer[moe_layer].add_(sent_W)

    def clear(self) -> None:
        """Start at 0 again, after counting steps that had no requests."""
        self.rows.zero_()
        self.sent.zero_()

    def imbalance(self) -> Tensor:
        """Return each layer's imbalance: the most pairs that a rank got, over the mean. Without pairs it is 1."""
        mean = self.sent.float().mean(1)
        return (self.sent.amax(1) / mean).where(mean > 0, 1.0)

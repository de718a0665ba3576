"""What the experts of one rank received: counted where the rows arrive, so that the counts are the work done here.

It does not balance anything; it is what a balancer reads.
"""

import torch
from torch import Tensor

__all__ = ["ExpertLoad"]


class ExpertLoad:
    """Rows computed so far by each local slot: `rows` is `[num_moe_layers, slots_per_rank]`."""

    def __init__(self, local_experts: Tensor) -> None:
        """`local_experts` `[num_moe_layers, slots_per_rank]`: the logical expert in each slot of this rank."""
        self.local_experts = local_experts
        self.rows = torch.zeros_like(local_experts)

    def add(self, moe_layer: int, counts: list[int]) -> None:
        """One dispatch of one layer."""
        self.rows[moe_layer] += torch.tensor(counts)

"""How many replicas each expert of a layer gets.

One redundant slot after the other goes to the expert whose replicas carry most, load / replicas, the lower expert
first among equals. That is optimal for the largest replica: no other way to hand out the slots makes it smaller.

No expert gets more replicas than there are GPUs: a second one on the same GPU would share nothing.
"""

import heapq
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["replicate"]


def replicate(loads: Sequence[int], num_slots: int, num_gpus: int) -> list[int]:
    """Replicas of each expert, `[num_logical_experts]`, at least 1 each and `num_slots` in all.

    The comparison is exact (fractions of integers), so that ties are ties on every machine.
    """
    num_experts = len(loads)
    assert num_experts <= num_slots <= num_experts * num_gpus
    counts = [1] * num_experts
    hottest = [(Fraction(-load), expert) for expert, load in enumerate(loads)] if num_gpus > 1 else []
    heapq.heapify(hottest)
    for _ in range(num_slots - num_experts):
        _, expert = heapq.heappop(hottest)
        counts[expert] += 1
        if counts[expert] < num_gpus:
            heapq.heappush(hottest, (Fraction(-loads[expert], counts[expert]), expert))
    return counts

"""The number of replicas of each expert.

One redundant slot after the other goes to the expert with the highest load / (replicas + shift), the lower expert
first among equals. Without a shift that is load / replicas, as EPLB does it, and optimal for the largest replica: no
other way to hand out the slots makes it smaller. The smallest largest replica need not pack best, though: a negative
shift favours experts that have few replicas, a positive one those with many, as the divisor methods of apportionment
favour small parties or large ones.

No expert gets more replicas than there are GPUs: a second one on the same GPU would share nothing.

Source: github.com/deepseek-ai/EPLB (`replicate_experts`).
"""

import numpy as np

from planner.expert_map.compiled import compiled
from planner.expert_map.weigh import Floats, Ints

__all__ = ["replicate"]


@compiled
def replicate(loads: Floats, num_slots: int, num_gpus: int, shift: float = 0.0, least: int = 1) -> Ints:
    """Return the replicas of each expert, `[E]`: at least `least` each, `num_slots` in all. `shift` is above -1."""
    counts = np.full(loads.size, least)
    priorities = loads / (least + shift)
    for _ in range(num_slots - least * loads.size):
        first = np.argmax(priorities)
        counts[first] += 1
        more = counts[first] < num_gpus
        priorities[first] = loads[first] / (counts[first] + shift) if more else -1.0
    return counts

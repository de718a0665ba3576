"""How many replicas each expert gets, in all layers at once.

One redundant slot after the other goes to the expert with the highest load / (replicas + shift), the lower expert
first among equals. Without a shift that is load / replicas, as EPLB does it, and optimal for the largest replica: no
other way to hand out the slots makes it smaller. What makes the largest replica smallest need not pack best, though: a
negative shift favours experts that have few replicas, a positive one those with many, as the divisor methods of
apportionment favour small parties or large ones.

No expert gets more replicas than there are GPUs: a second one on the same GPU would share nothing.

Source: github.com/deepseek-ai/EPLB (`replicate_experts`).
"""

import numpy as np

from planner.expert_map.weigh import Floats, Ints

__all__ = ["replicate"]


def replicate(loads_LE: Floats, num_slots: int, num_gpus: int, shift: float = 0.0) -> Ints:
    """Replicas of each expert, `[L, E]`, at least 1 each and `num_slots` in all; `shift` above -1."""
    num_layers, num_experts = loads_LE.shape
    assert num_experts <= num_slots <= num_experts * num_gpus
    counts = np.ones((num_layers, num_experts), dtype=np.int64)
    priorities = loads_LE / (1 + shift)
    layers = np.arange(num_layers)
    for _ in range(num_slots - num_experts):
        first = priorities.argmax(axis=1)
        counts[layers, first] += 1
        more = counts[layers, first]
        priorities[layers, first] = np.where(more < num_gpus, loads_LE[layers, first] / (more + shift), -1)
    return counts

"""All maps of a small layer, tried one by one: what ours and its bound are held against."""

from functools import cache
from itertools import combinations, combinations_with_replacement

import numpy as np

MAX_EXPERTS, MAX_SLOTS, MAX_GPUS = 8, 12, 4


def small_sizes():
    """Experts, slots and GPUs of every small layer in which there is something to choose."""
    for num_gpus in range(2, MAX_GPUS + 1):
        for slots_per_gpu in range(1, MAX_SLOTS // num_gpus + 1):
            num_slots = num_gpus * slots_per_gpu
            for num_experts in range(slots_per_gpu + 1, min(MAX_EXPERTS, num_slots) + 1):
                yield num_experts, num_slots, num_gpus


def optimum(loads, num_slots, num_gpus):
    """The lowest max over mean of all maps that hold no expert twice on a GPU."""
    if sum(loads) == 0:
        return 1.0
    held, counts = every_map(len(loads), num_slots // num_gpus, num_gpus)
    return float(_ratios(loads, held, counts).min())


def _ratios(loads, held, counts):
    """Max over mean of each map; 1.0 without load."""
    weights = np.array(loads) / counts
    fullest = np.max([(held[:, gpu] * weights).sum(axis=1) for gpu in range(held.shape[1])], axis=0)
    return fullest * held.shape[1] / sum(loads) if sum(loads) else np.ones(len(held))


@cache
def every_map(num_experts, slots_per_gpu, num_gpus):
    """Return every map as which GPU holds which expert, `[maps, GPUs, experts]`, and its replicas.

    GPUs in any order are one map.
    """
    subsets = list(combinations(range(num_experts), slots_per_gpu))
    held = np.zeros((len(subsets), num_experts), dtype=bool)
    for subset, experts in enumerate(subsets):
        held[subset, list(experts)] = True
    maps = held[np.array(list(combinations_with_replacement(range(len(subsets)), num_gpus)))]
    counts = maps.sum(axis=1)
    complete = counts.min(axis=1) > 0
    return maps[complete], counts[complete]

"""What no expert map can beat: a proven lower bound on max over mean, from loads and sizes alone.

It tells bad luck from a bad map: where the bound is reached, only more slots help. Four kinds, the highest counts:
    mean        the fullest GPU carries at least the mean: 1.0
    replicas    it carries at least the largest replica, which is smallest as `replicate` hands out the slots
    companions  the GPU of the largest replica holds S - 1 more slots, each at least the smallest replica
    groups      where nodes hold whole groups: the fullest node carries that much over the mean (`hierarchy`)

How small the smallest replica can be depends on how many slots the large ones leave over. In a map whose fullest GPU
carries T, no replica is larger than T: expert e has at least ceil(load_e / T) replicas. K slots are left over when each
has just as many; so no replica is smaller than m(T) = min_e load_e / (ceil(load_e / T) + K), and

    T >= largest + (S - 1) x m(T)

The right side falls as T rises, so the smallest T that satisfies this is a lower bound. It is found by bisection, and
its lower end, which does not satisfy it, is what is returned.

Only maps that hold no expert twice on a GPU are meant, as ours: an expert has at most G replicas.
"""

import numpy as np

from planner.expert_map.balance import BoundKind, Sizes
from planner.expert_map.hierarchy import fullest_node_bound
from planner.expert_map.replicate import replicate
from planner.expert_map.weigh import Floats

__all__ = ["bind"]

BISECTIONS = 40
ROUNDING = 1e-9  # every quotient errs by less, and always to the side that keeps the bound proven


def bind(loads_LE: Floats, sizes: Sizes, *, within_nodes: bool) -> tuple[Floats, tuple[BoundKind, ...]]:
    """The highest bound on max over mean of each layer, `[L]`, at least 1.0, and its kind; 1.0 without load.

    `within_nodes`: of maps that keep groups on nodes.
    """
    num_slots, num_gpus = min(sizes.num_slots, loads_LE.shape[1] * sizes.num_gpus), sizes.num_gpus
    kinds: tuple[BoundKind, ...] = ("mean", "replicas", "companions", "groups")
    bounds = _bound_loads(loads_LE, num_slots, num_gpus)
    mean = loads_LE.sum(axis=1) / num_gpus
    ratios = np.divide(bounds, mean, out=np.ones_like(bounds), where=mean > 0)
    if within_nodes:
        ratios = np.vstack((ratios, fullest_node_bound(loads_LE, sizes) * (1 - ROUNDING)))
    return np.maximum(ratios.max(axis=0), 1.0), tuple(kinds[kind] for kind in ratios.argmax(axis=0))


def _bound_loads(loads_LE: Floats, num_slots: int, num_gpus: int) -> Floats:
    """The lower bounds on the load of the fullest GPU, by kind: mean, replicas, companions; `[3, L]`."""
    mean = loads_LE.sum(axis=1) / num_gpus
    largest = (loads_LE / replicate(loads_LE, num_slots, num_gpus)).max(axis=1) * (1 - ROUNDING)
    low = largest.copy()
    num_companions = num_slots // num_gpus - 1
    high = largest + num_companions * loads_LE.min(axis=1)  # m(T) is at most the smallest load
    for _ in range(BISECTIONS if num_companions else 0):
        middle = (low + high) / 2
        possible = middle >= largest + num_companions * _smallest_replica(loads_LE, middle, num_slots, num_gpus)
        low, high = np.where(possible, low, middle), np.where(possible, middle, high)
    return np.stack((mean, largest, low)) * (1 - ROUNDING)


def _smallest_replica(loads_LE: Floats, largest_L: Floats, num_slots: int, num_gpus: int) -> Floats:
    """m(T): the least that a replica can carry when none carries more than `largest_L`, `[L]`."""
    quotients = np.divide(loads_LE, largest_L[:, None], out=np.zeros_like(loads_LE), where=largest_L[:, None] > 0)
    needed = np.clip(np.ceil(quotients * (1 - ROUNDING)), 1, num_gpus)
    left_over = np.maximum(num_slots - needed.sum(axis=1), 0)
    smallest: Floats = (loads_LE / np.minimum(needed + left_over[:, None], num_gpus)).min(axis=1) * (1 - ROUNDING)
    return smallest

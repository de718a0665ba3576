"""What no expert map can beat: a proven lower bound on max over mean, from loads and sizes alone.

It tells bad luck from a bad map: where the bound is reached, only more slots help. Four kinds, the highest counts:
    mean        the fullest GPU carries at least the mean: 1.0
    replicas    it carries at least the largest replica, which is smallest as `replicate` hands out the slots
    packing     the GPU of a heavy replica has S - 1 more slots, and other experts in them
    groups      where nodes hold whole groups: the fullest node carries that much over the mean (`hierarchy`)

How little those others can carry depends on how many replicas the heavy experts leave over. In a map whose fullest GPU
carries T, expert e has at least ceil(load_e / T) replicas, its base; K slots are left over when each has just as many,
and the map spends these on whom it likes. No GPU's other S - 1 slots then carry less than C, the least that S - 1
different experts can with K more replicas than their base between them; so every replica carries at most T - C, and

    sum_e ceil(load_e / (T - C))

slots are needed at least. A T for which that is more than there are cannot be reached. Bisection finds the highest such
T; its lower end is what is returned.

C gives one replica after the other to the S - 1 lightest experts, to where it helps most: load / (k (k + 1)). Only
these matter: with equally many replicas more than its base no other expert gets lighter. One with two base replicas or
more, of more than T / 2 each, carries with d more at least T / (2 + d), and one of load up to T / 2 no more than
(T / 2) / (1 + d). Where the S - 1 lightest are not all that light the bound is not used. It counts only maps that hold
no expert twice on a GPU, as ours.
"""

import numpy as np

from planner.expert_map.balance import BoundKind, Sizes
from planner.expert_map.compiled import compiled
from planner.expert_map.hierarchy import fullest_node_bound
from planner.expert_map.order import rising
from planner.expert_map.replicate import replicate
from planner.expert_map.weigh import Floats

__all__ = ["bind"]

KINDS: tuple[BoundKind, ...] = ("mean", "replicas", "packing", "groups")
BISECTIONS = 20
NEGLIGIBLE = 1e-4  # a bound by so little more is not looked for
ROUNDING = 1e-9  # every quotient errs by less, and always to the side that keeps the bound proven


def bind(loads_LE: Floats, sizes: Sizes, *, within_nodes: bool) -> tuple[Floats, tuple[BoundKind, ...]]:
    """The highest bound on max over mean of each layer, `[L]`, at least 1.0, and its kind; 1.0 without load.

    `within_nodes`: of maps that keep groups on nodes.
    """
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    slots_per_gpu = min(sizes.slots_per_gpu, loads_LE.shape[1])
    ratios_KL = _bounds(loads_LE, sizes.num_gpus, slots_per_gpu) / np.where(mean_L > 0, mean_L, 1.0)
    if within_nodes:
        ratios_KL = np.vstack((ratios_KL, fullest_node_bound(loads_LE, sizes) * (1 - ROUNDING)))
    return np.maximum(ratios_KL.max(axis=0), 1.0), tuple(KINDS[kind] for kind in ratios_KL.argmax(axis=0))


@compiled
def _bounds(loads_LE: Floats, num_gpus: int, slots_per_gpu: int) -> Floats:
    """Lower bounds on the load of the fullest GPU, by kind: mean, replicas, packing; `[3, L]`."""
    bounds = np.zeros((3, loads_LE.shape[0]))
    for layer in range(loads_LE.shape[0]):
        loads = loads_LE[layer][rising(loads_LE[layer])]
        counts = replicate(loads, num_gpus * slots_per_gpu, num_gpus, 0.0)
        largest = 0.0
        for expert in range(loads.size):
            largest = max(largest, loads[expert] / counts[expert] * (1 - ROUNDING))
        bounds[0, layer] = loads.sum() / num_gpus * (1 - ROUNDING)
        bounds[1, layer] = largest
        bounds[2, layer] = _bound_by_packing(loads, num_gpus, slots_per_gpu, largest)
    return bounds


@compiled
def _bound_by_packing(loads: Floats, num_gpus: int, slots_per_gpu: int, largest: float) -> float:
    """The highest load found that no map can keep to; `loads` rising."""
    low = max(largest, loads.sum() / num_gpus * (1 - ROUNDING))
    if slots_per_gpu == 1 or not _is_out_of_reach(loads, num_gpus, slots_per_gpu, low * (1 + NEGLIGIBLE)):
        return float(low)
    high = low + loads[:slots_per_gpu].sum()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _is_out_of_reach(loads, num_gpus, slots_per_gpu, middle):
            low = middle
        else:
            high = middle
    return float(low)


@compiled
def _is_out_of_reach(loads: Floats, num_gpus: int, slots_per_gpu: int, fullest: float) -> bool:
    """Whether it is proven that in any map some GPU carries more than `fullest`."""
    num_slots = num_gpus * slots_per_gpu
    left_over = num_slots - _fewest_slots(loads, fullest)
    if left_over < 0:
        return True
    companions = loads[: slots_per_gpu - 1]
    if companions[-1] > fullest / 2:
        return False
    others = _least_load(companions, left_over)
    return others >= fullest or _fewest_slots(loads, fullest - others) > num_slots


@compiled
def _least_load(loads: Floats, left_over: int) -> float:
    """C: what one replica of each carries together when so many more replicas are given to them."""
    counts = np.ones(loads.size)
    for _ in range(left_over):
        helped, most = 0, -1.0
        for expert in range(loads.size):
            helps = loads[expert] / (counts[expert] * (counts[expert] + 1))
            if helps > most:
                helped, most = expert, helps
        counts[helped] += 1
    least = 0.0
    for expert in range(loads.size):
        least += loads[expert] / counts[expert] * (1 - ROUNDING)
    return least


@compiled
def _fewest_slots(loads: Floats, largest: float) -> int:
    """The slots in which no replica carries more than that."""
    fewest = 0
    for load in loads:
        fewest += max(int(np.ceil(load / largest * (1 - ROUNDING))), 1)
    return fewest

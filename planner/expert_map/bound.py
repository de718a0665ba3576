"""The limit that no expert map can beat: a proven lower bound on max over mean, from loads and sizes alone.

It tells bad luck from a bad map: where the bound is reached, only more slots help. Five kinds, the highest counts:
    mean        the fullest GPU carries at least the mean: 1.0
    replicas    it carries at least the largest replica, which is smallest as `replicate` hands out the slots
    packing     the GPU of a heavy replica has S - 1 more slots, and other experts in them
    pairs       there are more heavy replicas than GPUs, so that two share one
    groups      where nodes hold whole groups: the fullest node carries that much over the mean (`hierarchy`)

The least that those others carry depends on how many replicas the heavy experts leave over. In a map whose fullest GPU
carries T, expert e has at least ceil(load_e / T) replicas, its base; K slots are left over when each has just as many,
and the map spends these on whom it likes. No GPU's other S - 1 slots then carry less than C, the least that S - 1
different experts can with K more replicas than their base between them; so every replica carries at most T - C, and

    sum_e ceil(load_e / (T - C))

slots are needed at least. A T for which that is more than there are cannot be reached. Bisection finds the highest such
T; its lower end is what is returned.

Two replicas of more than (T - D) / 2 each do not share a GPU either, where D is for S - 2 slots what C is for S - 1,
with the slots left over from the sum above. An expert whose replicas are as heavy as that with as few as there can be
gets more, light ones, only for slots left over; they are spent where they do away with most heavy replicas each, the
last of them in part. When more heavy replicas are left than there are GPUs, T cannot be reached. Two such bounds are
looked for, one after the other: `packing` without the heavy pairs, and `pairs`, which counts where it is higher.

C gives one replica after the other to the S - 1 lightest experts, to where it helps most: load / (k (k + 1)). Only
these matter: with equally many replicas more than its base no other expert gets lighter. One with two base replicas or
more, of more than T / 2 each, carries with d more at least T / (2 + d), and one of load up to T / 2 no more than
(T / 2) / (1 + d). Where the S - 1 lightest are not all that light the bound is not used, and D is 0 where they are not
up to (T - C) / 2, for the same reason. It counts only maps that hold
no expert twice on a GPU, as ours.
"""

import numpy as np

from planner.expert_map.compiled import compiled
from planner.expert_map.hierarchy import fullest_node_bound
from planner.expert_map.order import rising
from planner.expert_map.replicate import replicate
from planner.expert_map.types import BoundKind, Sizes
from planner.expert_map.weigh import Floats

__all__ = ["bind"]

KINDS: tuple[BoundKind, ...] = ("mean", "replicas", "packing", "pairs", "groups")
BISECTIONS = 20
NEGLIGIBLE = 1e-4  # a bound by so little more is not looked for
ROUNDING = 1e-9  # every quotient errs by less, and always to the side that keeps the bound proven


def bind(loads_LE: Floats, sizes: Sizes, *, within_nodes: bool) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the highest bound on max over mean of each layer, `[L]`, at least 1.0, and its kind; 1.0 without load.

    `within_nodes`: only maps that keep groups on nodes count.
    """
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    slots_per_gpu = min(sizes.slots_per_gpu, loads_LE.shape[1])
    ratios_KL = _bounds(loads_LE, sizes.num_gpus, slots_per_gpu) / np.where(mean_L > 0, mean_L, 1.0)
    if within_nodes:
        ratios_KL = np.vstack((ratios_KL, fullest_node_bound(loads_LE, sizes) * (1 - ROUNDING)))
    return np.maximum(ratios_KL.max(axis=0), 1.0), tuple(KINDS[kind] for kind in ratios_KL.argmax(axis=0))


@compiled
def _bounds(loads_LE: Floats, num_gpus: int, slots_per_gpu: int) -> Floats:
    """Lower bounds on the load of the fullest GPU, by kind: mean, replicas, packing, pairs; `[4, L]`."""
    bounds = np.zeros((4, loads_LE.shape[0]))
    for layer in range(loads_LE.shape[0]):
        loads = loads_LE[layer][rising(loads_LE[layer])]
        counts = replicate(loads, num_gpus * slots_per_gpu, num_gpus, 0.0)
        largest = 0.0
        for expert in range(loads.size):
            largest = max(largest, loads[expert] / counts[expert] * (1 - ROUNDING))
        bounds[0, layer] = loads.sum() / num_gpus * (1 - ROUNDING)
        bounds[1, layer] = largest
        bounds[2, layer] = _out_of_reach(loads, num_gpus, slots_per_gpu, max(bounds[0, layer], largest), False)
        bounds[3, layer] = _out_of_reach(loads, num_gpus, slots_per_gpu, bounds[2, layer], True)
    return bounds


@compiled
def _out_of_reach(loads: Floats, num_gpus: int, slots_per_gpu: int, low: float, with_pairs: bool) -> float:
    """Return the highest load found that no map can keep to, `low` at least; `loads` rise.

    No map's fullest GPU carries less than `low`.
    """
    if slots_per_gpu == 1 or not _is_out_of_reach(loads, num_gpus, slots_per_gpu, low * (1 + NEGLIGIBLE), with_pairs):
        return low
    high = low + loads[:slots_per_gpu].sum()
    if with_pairs:
        high = low + loads[-1]
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _is_out_of_reach(loads, num_gpus, slots_per_gpu, middle, with_pairs):
            low = middle
        else:
            high = middle
    return low


@compiled
def _is_out_of_reach(loads: Floats, num_gpus: int, slots_per_gpu: int, fullest: float, with_pairs: bool) -> bool:
    """Return whether it is proven that every map has a GPU that carries more than `fullest`."""
    num_slots = num_gpus * slots_per_gpu
    left_over = num_slots - _fewest_slots(loads, fullest)
    if left_over < 0:
        return True
    companions = loads[: slots_per_gpu - 1]
    if companions[-1] > fullest / 2:
        return False
    others = _least_load(companions, left_over)
    if others >= fullest:
        return True
    largest = fullest - others
    left_over = num_slots - _fewest_slots(loads, largest)
    if left_over < 0 or not with_pairs:
        return left_over < 0
    others = _least_load(companions[:-1], left_over) if companions[-1] <= largest / 2 else 0.0
    return _fewest_heavy(loads, largest, (fullest - others) / 2 * (1 + ROUNDING), left_over) > num_gpus


@compiled
def _fewest_heavy(loads: Floats, largest: float, heavy: float, left_over: int) -> int:
    """Return a lower bound on the number of replicas heavier than `heavy`, when none is heavier than `largest`.

    `left_over` is how many slots there are beyond those that `largest` needs.
    """
    num_heavy, costs, spared = 0, np.zeros(loads.size), np.zeros(loads.size)
    for expert in range(loads.size):
        count = max(int(np.ceil(loads[expert] / largest * (1 - ROUNDING))), 1)
        if loads[expert] > heavy * count:
            num_heavy += count
            spared[expert] = count
            costs[expert] = max(np.ceil(loads[expert] / heavy * (1 - ROUNDING)) - count, 1.0)
    max_spared = 0.0
    for expert in rising(-spared / np.maximum(costs, 1.0)):
        spent = min(costs[expert], float(left_over))
        left_over -= int(spent)
        max_spared += spared[expert] * spent / max(costs[expert], 1.0)
    return num_heavy - int(np.floor(max_spared + ROUNDING))


@compiled
def _least_load(loads: Floats, left_over: int) -> float:
    """Return C: the load of one replica of each expert together, after `left_over` more replicas are given to them."""
    counts = np.ones(loads.size)
    for _ in range(left_over if loads.size else 0):
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
    """Return how many slots are needed so that no replica carries more than `largest`."""
    fewest = 0
    for load in loads:
        fewest += max(int(np.ceil(load / largest * (1 - ROUNDING))), 1)
    return fewest

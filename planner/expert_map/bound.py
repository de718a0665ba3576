"""What no expert map can beat: a proven lower bound on max over mean, from loads and sizes alone.

It tells bad luck from a bad map: where the bound is reached, only more slots help. Four kinds, the highest counts:
    mean        the fullest GPU carries at least the mean: 1.0
    replicas    it carries at least the largest replica, which is smallest as `replicate` hands out the slots
    packing     the GPUs that hold the heaviest experts have S - 1 more slots each, which hold something too
    groups      where nodes hold whole groups: the fullest node carries that much over the mean (`hierarchy`)

How little those slots can hold depends on how many replicas the heavy experts leave over. In a map whose fullest GPU
carries T, expert e has at least n_e = ceil(load_e / T) replicas, its base; K slots are left over when each has just as
many. Let H be any heaviest experts, with p base replicas and load W together. In the map they have p + k replicas, on
u <= p + k GPUs, and the others' S u - p - k slots there are filled with replicas of other experts, j more of them than
their base, k + j <= K. Any q slots of those experts carry at least what the q - j lightest base replicas (load_e / n_e)
do: s replicas of an expert that has d more than its base carry s load / (n + d) >= (s - d) load / n. So, with B(q) the
load of the q lightest base replicas outside H,

    W + B(S u - p - K) <= u T    for some u <= min(p + K, G)

where p base replicas are heavy. A T for which some H has no such u cannot be reached: bisection finds the highest such
T, and where it has not settled the lower end is what is returned. The left side is convex in u, so the largest u is
looked at first, and smaller ones while they come closer.

With one slot less to fill, the smallest replica m(T) = min_e load_e / (n_e + K) gives another bound of this kind,

    T >= largest + (S - 1) m(T)

which is stronger where many slots are left over. It counts only maps that hold no expert twice on a GPU, as ours.
"""

import numpy as np

from planner.expert_map.balance import BoundKind, Sizes
from planner.expert_map.compiled import compiled
from planner.expert_map.hierarchy import fullest_node_bound
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
        loads = np.sort(loads_LE[layer])
        largest = (loads / replicate(loads, num_gpus * slots_per_gpu, num_gpus, 0.0)).max() * (1 - ROUNDING)
        bounds[0, layer] = loads.sum() / num_gpus * (1 - ROUNDING)
        bounds[1, layer] = largest
        bounds[2, layer] = _bound_by_packing(loads, num_gpus, slots_per_gpu, largest)
    return bounds


@compiled
def _bound_by_packing(loads: Floats, num_gpus: int, slots_per_gpu: int, largest: float) -> float:
    """The highest load found that no map can keep to; `loads` rising."""
    low = max(largest, loads.sum() / num_gpus * (1 - ROUNDING))
    if slots_per_gpu == 1 or not _is_out_of_reach(loads, num_gpus, slots_per_gpu, largest, low * (1 + NEGLIGIBLE)):
        return float(low)
    high = 2 * low + slots_per_gpu * loads[0]
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _is_out_of_reach(loads, num_gpus, slots_per_gpu, largest, middle):
            low = middle
        else:
            high = middle
    return float(low)


@compiled
def _is_out_of_reach(loads: Floats, num_gpus: int, slots_per_gpu: int, largest: float, fullest: float) -> bool:
    """Whether it is proven that in any map some GPU carries more than `fullest`."""
    base = np.maximum(np.ceil(loads / fullest * (1 - ROUNDING)), 1.0)
    left_over = int(num_gpus * slots_per_gpu - base.sum())
    smallest = (loads / np.minimum(base + left_over, num_gpus)).min()
    if left_over < 0 or fullest < largest + (slots_per_gpu - 1) * smallest * (1 - ROUNDING):
        return True
    order = np.argsort(loads / base, kind="mergesort")
    lightest = _lightest_base_replicas(loads[order], base[order])
    heavy_load, num_heavy = 0.0, 0
    for expert in order[::-1]:
        heavy_load += loads[expert]
        num_heavy += int(base[expert])
        if num_heavy + left_over >= num_gpus:
            return False
        if _cannot_hold(lightest, heavy_load, num_heavy, left_over, slots_per_gpu, fullest):
            return True
    return False


@compiled
def _lightest_base_replicas(loads: Floats, base: Floats) -> Floats:
    """What the q lightest base replicas carry, for each q; experts in rising order of that."""
    lightest = np.zeros(int(base.sum()) + 1)
    num_replicas = 0
    for expert in range(loads.size):
        for _ in range(int(base[expert])):
            num_replicas += 1
            lightest[num_replicas] = lightest[num_replicas - 1] + loads[expert] / base[expert]
    return lightest * (1 - ROUNDING)


@compiled
def _cannot_hold(
    lightest: Floats, heavy_load: float, num_heavy: int, left_over: int, slots_per_gpu: int, fullest: float
) -> bool:
    """Whether no number of GPUs holds the heavy experts and what else must lie in these GPUs' slots."""
    missing = np.inf
    for num_gpus in range(num_heavy + left_over, 0, -1):
        num_others = min(max(slots_per_gpu * num_gpus - num_heavy - left_over, 0), lightest.size - 1 - num_heavy)
        still_missing = heavy_load * (1 - ROUNDING) + lightest[num_others] - num_gpus * fullest
        if still_missing <= 0:
            return False
        if still_missing >= missing:
            return True
        missing = still_missing
    return True

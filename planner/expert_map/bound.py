"""The limit that no expert map can beat: a proven lower bound on max over mean, from loads and sizes alone.

It tells bad luck from a bad map: where the bound is reached, only more slots help. Six kinds, the highest counts:
    mean        the fullest GPU carries at least the mean: 1.0
    replicas    it carries at least the largest replica, which is smallest as `replicate` hands out the slots
    packing     the GPU of a heavy replica has S - 1 more slots, and other experts in them
    pairs       there are more heavy replicas than GPUs, so that two share one
    groups      where nodes hold whole groups: the fullest node carries that much over the mean (`hierarchy`)
    coverage    the largest replica, where every expert has two

The least that those others carry depends on how many replicas the heavy experts leave over. In a map whose fullest GPU
carries T, expert e has at least ceil(load_e / T) replicas, its base; K slots are left over when each has just as many,
and the map may give these to any expert. No GPU's other S - 1 slots then carry less than C, the least that S - 1
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
no expert twice on a GPU, as ours do.

With several windows of load, max over mean in a window is at least that window's own bound, so that the k-th lowest of
it is at least the k-th lowest of these. With all windows counted it is at least the bound for the mean loads, too: the
fullest GPU of the mean carries as much as it does on average over windows, which is at most the worst.

The counting is C (`native/bound.h`).
"""

import numpy as np

from planner.expert_map import native
from planner.expert_map.hierarchy import fullest_node_bound
from planner.expert_map.types import BoundKind, Sizes, SplitRule
from planner.expert_map.weigh import Floats, scale

__all__ = ["bind", "bind_windows"]

KINDS: tuple[BoundKind, ...] = ("mean", "replicas", "packing", "pairs", "groups", "coverage")
ROUNDING = 1e-9  # every quotient errs by less, and always to the side that keeps the bound proven


def bind(
    loads_LE: Floats, sizes: Sizes, *, within_nodes: bool, are_covered: bool = False, split: SplitRule = "equal"
) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the highest bound on max over mean of each layer, `[L]`, at least 1.0, and its kind; 1.0 without load.

    `within_nodes`: only maps that keep groups on nodes count. `are_covered`: only those with two replicas of each.
    """
    bounds_KL = np.zeros((len(KINDS), len(loads_LE)))
    bounds_KL[:4] = native.bounds(loads_LE, sizes)
    if split != "equal":
        bounds_KL[2:4] = 0  # of companions and pairs, whose shares are equal
    if are_covered:
        bounds_KL[5] = native.bounds(loads_LE, sizes, least=2)[KINDS.index("replicas")]
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    ratios_KL = np.divide(bounds_KL, mean_L, out=np.zeros_like(bounds_KL), where=mean_L > 0)
    if within_nodes:
        ratios_KL[4] = fullest_node_bound(loads_LE, sizes) * (1 - ROUNDING)
    return np.maximum(ratios_KL.max(axis=0), 1.0), tuple(KINDS[kind] for kind in ratios_KL.argmax(axis=0))


def bind_windows(
    loads_WLE: Floats, sizes: Sizes, num_counted: int, *, within_nodes: bool
) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return the same for max over mean in the worst of the `num_counted` most even windows.

    The windows of a layer have the same total.
    """
    found = [bind(each, sizes, within_nodes=within_nodes) for each in loads_WLE]
    order_WL = np.argsort([bound_L for bound_L, _ in found], axis=0, kind="stable")
    of_mean_L, mean_binding = bind(scale(loads_WLE.sum(axis=0)), sizes, within_nodes=within_nodes)
    bounds, kinds = [], []
    for layer, window in enumerate(order_WL[num_counted - 1]):
        bound, kind = found[window][0][layer], found[window][1][layer]
        if num_counted == len(found) and of_mean_L[layer] > bound:
            bound, kind = of_mean_L[layer], mean_binding[layer]
        bounds.append(max(bound * (1 - ROUNDING), 1.0))
        kinds.append(kind)
    return np.array(bounds), tuple(kinds)

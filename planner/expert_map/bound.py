"""A proven lower bound on max over mean, from loads and sizes alone: no expert map can beat it.

It tells uneven loads from a bad map: if a map reaches the bound, only more slots help. It holds for maps that have no
expert twice on a GPU, as ours. There are six kinds of bound, and the highest counts:
    mean        the fullest GPU carries at least the mean: 1.0
    replicas    the fullest GPU carries at least the largest replica; `replicate` hands out slots so that it is smallest
    packing     the GPU with a heavy replica has S - 1 more slots, with other experts in them
    pairs       there are more heavy replicas than GPUs, so two of them share a GPU
    groups      if nodes hold whole groups: load of the fullest node / mean of nodes (`hierarchy`)
    coverage    the largest replica, if every expert must have at least two

Packing. Suppose that no GPU carries more than T. Then expert e has at least ceil(load_e / T) replicas, its base count.
If every expert has its base count, K slots are left, and the map may give them to any expert. Let C be the least load
that S - 1 different experts can put on one GPU if they share K replicas beyond their base counts. Next to any replica
there is at least C, so no replica carries more than T - C, and the map needs at least

    sum_e ceil(load_e / (T - C))

slots. If there are fewer, T cannot be reached. Bisection looks for the highest such T and returns its lower end.

C: each of the K replicas goes to one of the S - 1 lightest experts, where it lowers the load most: by load / (k (k +
1)). The lightest suffice if their loads are at most T / 2. With d more replicas such an expert has a replica of at most
(T / 2) / (1 + d). An expert with a base count of two or more has base replicas above T / 2, and with d more still at
least T / (2 + d). If the S - 1 lightest are not that light, this bound is not used.

Pairs. Let D be the same as C for S - 2 slots, with the slots left from the sum above. Two replicas above (T - D) / 2
cannot share a GPU. An expert whose replicas are that heavy at its fewest gets lighter ones only with slots that are
left. Those are spent where each removes most heavy replicas, the last in part. If more heavy replicas than GPUs remain,
T cannot be reached. D is 0 unless the lightest experts are at most (T - C) / 2, for the reason above.

The arithmetic is C (`native/bound.h`).
"""

import numpy as np

from planner.expert_map import native
from planner.expert_map.hierarchy import fullest_node_bound
from planner.expert_map.types import BoundKind, Sizes
from planner.expert_map.weigh import Floats
from planner.facts.terms import SplitRule

KINDS: tuple[BoundKind, ...] = ("mean", "replicas", "packing", "pairs", "groups", "coverage")
ROUNDING = 1e-9  # covers rounding: a bound may be too low, never too high


def compute_bounds(
    loads_LE: Floats, sizes: Sizes, *, within_nodes: bool, are_covered: bool = False, split: SplitRule = "equal"
) -> tuple[Floats, tuple[BoundKind, ...]]:
    """Return (a lower bound on max over mean of each layer, `[L]`; its kind). It is 1.0 for a layer without load.

    With `within_nodes` the bound holds only for maps that keep groups on nodes, with `are_covered` only for maps with
    at least two replicas of each expert.
    """
    bounds_KL = np.zeros((len(KINDS), len(loads_LE)))
    bounds_KL[:4] = native.lower_bounds(loads_LE, sizes)
    if split != "equal":
        bounds_KL[2:4] = 0  # packing and pairs hold for equal shares only
    if are_covered:
        bounds_KL[5] = native.lower_bounds(loads_LE, sizes, least=2)[KINDS.index("replicas")]
    mean_L = loads_LE.sum(axis=1) / sizes.num_gpus
    ratios_KL = np.divide(bounds_KL, mean_L, out=np.zeros_like(bounds_KL), where=mean_L > 0)
    if within_nodes:
        ratios_KL[4] = fullest_node_bound(loads_LE, sizes) * (1 - ROUNDING)
    return np.maximum(ratios_KL.max(axis=0), 1.0), tuple(KINDS[kind] for kind in ratios_KL.argmax(axis=0))

"""Estimate the fullest GPU's load in a single step: the map's imbalance plus sampling noise.

`max_over_mean` is an average over many steps. In one step of n token-expert pairs, a GPU with share p of the load gets
about n p of them, and the step waits for the GPU with most. The expected maximum, over the mean n / G:

    E[max] = sum over k >= 0 of 1 - product over GPUs of P(X <= k),      X Poisson with mean n p

P is approximated by Wilson and Hilferty's cube root, and k is summed in blocks if n p is large. Pairs and GPUs are
assumed independent. The result is within 2 % of multinomial draws if a GPU gets 20 pairs or more in a step, and within
4 % if it gets 3 (tests).

A formula needs no seed, and is the same for the same map.
"""

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from planner.expert_map import ExpertMap, Sizes

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats

__all__ = ["max_over_mean_sampled"]

POINTS = 128
DEVIATIONS = 8.0  # standard deviations; probabilities beyond are negligible
TABLE_STEPS = 4000  # of the normal table; interpolation errs by less than 1e-6


def max_over_mean_sampled(
    expert_map: ExpertMap, loads: Sequence[Sequence[float]], sizes: Sizes, num_pairs: int
) -> tuple[float, ...]:
    """Return the expected max/mean of each MoE layer within one step of `num_pairs` token-expert pairs."""
    import numpy as np  # `validate` must not wait for it

    from planner.expert_map.native import gpu_loads
    from planner.expert_map.weigh import as_slots, scale

    slots_LGS = as_slots(expert_map.physical_to_logical, sizes)
    gpu_loads_LG = gpu_loads(scale(loads), slots_LGS, expert_map.split, sizes.num_nodes)
    total_L = gpu_loads_LG.sum(axis=1, keepdims=True)
    shares_LG = np.divide(gpu_loads_LG, total_L, out=np.full_like(gpu_loads_LG, 1 / sizes.num_gpus), where=total_L > 0)
    fullest_L = _expected_fullest(shares_LG * num_pairs)
    return tuple((fullest_L * sizes.num_gpus / num_pairs).round(4).tolist())


def _expected_fullest(means_LG: "Floats") -> "Floats":
    """Return the expected pairs of the fullest GPU, `[L]`, from the expected pairs of each GPU.

    The sum starts where some GPU surely has more pairs, and ends where surely none has.
    """
    import numpy as np  # as above

    reach_LG = DEVIATIONS * (np.sqrt(means_LG) + 1)
    low_L = np.maximum(np.floor(means_LG - reach_LG).max(axis=1), 0)
    width_L = np.maximum(np.ceil(((means_LG + reach_LG).max(axis=1) - low_L) / POINTS), 1)
    table, below = _normal_table()
    fullest_L: Floats = low_L.copy()
    for point in range(POINTS):
        count_L1 = (low_L + point * width_L + (width_L + 1) / 2)[:, None]  # k + 1, at the middle of a block
        root_LG = 1 - 1 / (9 * count_L1) - np.cbrt(means_LG / count_L1)
        fullest_L += (1 - np.interp(3 * np.sqrt(count_L1) * root_LG, table, below).prod(axis=1)) * width_L
    return fullest_L


@cache
def _normal_table() -> "tuple[Floats, Floats]":
    """Return points and the normal distribution function at each."""
    import numpy as np  # as above

    table = np.linspace(-DEVIATIONS, DEVIATIONS, TABLE_STEPS + 1)
    return table, np.array([NormalDist().cdf(each) for each in table.tolist()])

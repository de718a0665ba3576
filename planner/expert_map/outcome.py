"""The result of a search as an `ExpertMap`, and a map as the array that searches work on.

Every search, whatever its rule, hands over slots `[L, G, S]`, ratios and bounds as arrays; here they become what plans
write, alike for all: ratios rounded, bounds rounded down so that they stay proven.
"""

from collections.abc import Sequence

import numpy as np

from planner.expert_map.types import Sizes
from planner.expert_map.weigh import Floats, Ints

__all__ = ["PRINTED", "as_bounds", "as_ratios", "as_rows", "as_slots", "holds_everything", "slots_of_everything"]

DIGITS = 6  # of a ratio
PRINTED = 10**-DIGITS


def as_rows(slots_LGS: Ints) -> tuple[tuple[int, ...], ...]:
    """Return the expert in each slot, `[L][N]`."""
    return tuple(map(tuple, slots_LGS.reshape(len(slots_LGS), -1).tolist()))


def as_slots(rows: Sequence[Sequence[int]], sizes: Sizes) -> Ints:
    """Return rows as slots, `[L, G, S]`: the reverse of `as_rows`."""
    return np.array(rows, dtype=np.int64).reshape(len(rows), sizes.num_gpus, sizes.slots_per_gpu)


def as_ratios(ratio_L: Floats) -> tuple[float, ...]:
    """Return max over mean of each layer, rounded."""
    return tuple(ratio_L.round(DIGITS).tolist())


def as_bounds(bound_L: Floats) -> tuple[float, ...]:
    """Return bounds on max over mean, rounded down."""
    return tuple((np.floor(bound_L * 10**DIGITS) / 10**DIGITS).tolist())


def holds_everything(sizes: Sizes, num_experts: int) -> bool:
    """Return whether every GPU has a slot for every expert, so that there is nothing to search."""
    return sizes.slots_per_gpu >= num_experts


def slots_of_everything(num_layers: int, sizes: Sizes, num_experts: int) -> Ints:
    """Return the map for that case, `[L, G, S]`. Slots beyond one for each expert are filled but not needed."""
    slots = np.arange(sizes.slots_per_gpu) % num_experts
    return np.tile(slots, (num_layers, sizes.num_gpus, 1))

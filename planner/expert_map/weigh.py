"""Convert loads to whole numbers, so that sums are exact and the same on any machine, and maps to and from arrays.

Token counts become whole numbers below 2^44 a layer, kept in float64. Sums and matrix products of them are exact in any
order; a quotient of two is rounded the same way everywhere (IEEE 754).

Shapes, here and in the modules that work on all layers at once: L layers, E logical experts, N slots, G GPUs, S slots
of one GPU, M nodes, P groups; N = G x S.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.types import Sizes

DIGITS = 6  # to which ratios are rounded
TOTAL_BITS = 44  # size of a layer's total, of float64's 53 bits, so that sums and their differences stay exact

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def scale(loads: Sequence[Sequence[float]] | Floats) -> Floats:
    """Return loads scaled to whole numbers, `[L, E]`; each layer sums to at most 2^44.

    Each layer's loads are multiplied by a power of two and rounded down. The power depends on the layer's largest load
    alone, because a sum of floats would depend on the order of addition.
    """
    loads_LE = np.asarray(loads, dtype=np.float64, order="C")
    _, exponents = np.frexp(loads_LE.max(axis=1, keepdims=True))
    bits_of_a_load = TOTAL_BITS - loads_LE.shape[1].bit_length()
    scaled: Floats = np.floor(np.ldexp(loads_LE, bits_of_a_load - exponents))
    return scaled


def count_replicas(slots_LGS: Ints, num_experts: int) -> Ints:
    """Return how many slots hold each expert, `[L, E]`."""
    num_layers = len(slots_LGS)
    apart = slots_LGS.reshape(num_layers, -1) + num_experts * np.arange(num_layers)[:, None]
    return np.bincount(apart.ravel(), minlength=num_layers * num_experts).reshape(num_layers, num_experts)


def as_rows(slots_LGS: Ints) -> tuple[tuple[int, ...], ...]:
    """Return a map as tuples, the expert in each slot, `[L][N]`."""
    return tuple(map(tuple, slots_LGS.reshape(len(slots_LGS), -1).tolist()))


def as_slots(rows: Sequence[Sequence[int]], sizes: Sizes) -> Ints:
    """Return a map as an array of slots, `[L, G, S]`, from rows, `[L][N]`."""
    return np.array(rows, dtype=np.int64).reshape(len(rows), sizes.num_gpus, sizes.slots_per_gpu)


def round_ratios(ratio_L: Floats) -> tuple[float, ...]:
    """Return max over mean of each layer, `[L]`, as floats rounded to 6 digits."""
    return tuple(ratio_L.round(DIGITS).tolist())


def round_bounds_down(bound_L: Floats) -> tuple[float, ...]:
    """Return the bound of each layer, `[L]`, as floats rounded down to 6 digits, so that they stay bounds."""
    return tuple((np.floor(bound_L * 10**DIGITS) / 10**DIGITS).tolist())


def make_full_map(num_layers: int, sizes: Sizes, num_experts: int) -> Ints:
    """Return the map in which each GPU holds all experts, `[L, G, S]`.

    If a GPU has more slots than there are experts, the further slots repeat the first ones.
    """
    slots = np.arange(sizes.slots_per_gpu) % num_experts
    return np.tile(slots, (num_layers, sizes.num_gpus, 1))

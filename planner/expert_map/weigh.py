"""Loads as numbers that add up exactly, so that every comparison comes out alike on any machine.

Token counts become whole numbers below 2^44 a layer, kept in float64. Sums of them are exact in whatever order a
machine adds them up, and matrix products too; a quotient of two is rounded the same way everywhere (IEEE 754).

Shapes, here and in the modules that work on all layers at once: L layers, E logical experts, N slots, G GPUs, S slots
of one GPU; N = G x S.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["TOTAL_BITS", "Floats", "Ints", "gpu_loads", "replica_weights", "scale"]

TOTAL_BITS = 44  # leaves the other bits of float64's 53 to `exchange`, which marks what must not be exchanged

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def scale(loads: Sequence[Sequence[int]]) -> Floats:
    """Whole numbers in the proportions of `loads`, `[L, E]`; each layer sums to at most 2^44.

    A power of two is multiplied in, and a remainder dropped where loads are larger than that.
    """
    shifts = np.array([[TOTAL_BITS - sum(row).bit_length()] for row in loads])
    scaled: Floats = np.floor(np.ldexp(np.array(loads, dtype=np.float64), shifts))
    return scaled


def replica_weights(loads_LE: Floats, counts_LE: Ints) -> Floats:
    """What one replica of each expert carries when tokens split equally, `[L, E]`, whole."""
    weights: Floats = np.floor(loads_LE / counts_LE)
    return weights


def gpu_loads(weights_LE: Floats, slots_LGS: Ints) -> Floats:
    """What each GPU carries, `[L, G]`."""
    layers = np.arange(len(slots_LGS))[:, None, None]
    loads: Floats = weights_LE[layers, slots_LGS].sum(axis=2)
    return loads

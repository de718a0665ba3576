"""Loads as numbers that add up exactly, so that every comparison comes out alike on any machine.

Token counts become whole numbers below 2^44 a layer, kept in float64. Sums of them are exact in whatever order a
machine adds them up, and matrix products too; a quotient of two is rounded the same way everywhere (IEEE 754).

Shapes, here and in the modules that work on all layers at once: L layers, E logical experts, N slots, G GPUs, S slots
of one GPU; N = G x S.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Floats",
    "Ints",
    "count_replicas",
    "fullest_in_whole_numbers",
    "gpu_loads",
    "max_over_mean",
    "scale",
]

TOTAL_BITS = 44  # of float64's 53: sums and differences of sums stay exact

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def scale(loads: Sequence[Sequence[float]] | Floats) -> Floats:
    """Return whole numbers in the proportions of `loads`, `[L, E]`; each layer sums to at most 2^44.

    Loads are multiplied by a power of two, and what is then smaller than 1 is dropped. The power depends on the largest
    load alone: a sum of floats would depend on the order in which a machine adds.
    """
    loads_LE = np.asarray(loads, dtype=np.float64, order="C")
    _, exponents = np.frexp(loads_LE.max(axis=1, keepdims=True))
    bits_of_a_load = TOTAL_BITS - loads_LE.shape[1].bit_length()
    scaled: Floats = np.floor(np.ldexp(loads_LE, bits_of_a_load - exponents))
    return scaled


def gpu_loads(weights_LE: Floats, slots_LGS: Ints) -> Floats:
    """Return the load of each GPU, `[L, G]`."""
    layers = np.arange(len(slots_LGS))[:, None, None]
    loads: Floats = weights_LE[layers, slots_LGS].sum(axis=2)
    return loads


def max_over_mean(loads_LE: Floats, slots_LGS: Ints) -> Floats:
    """Return the load of the fullest GPU / mean of all, `[L]`, when tokens split equally; 1.0 without load."""
    mean_L = loads_LE.sum(axis=1) / slots_LGS.shape[1]
    fullest_L = gpu_loads(loads_LE / count_replicas(slots_LGS, loads_LE.shape[1]), slots_LGS).max(axis=1)
    ratios: Floats = np.divide(fullest_L, mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
    return ratios


def fullest_in_whole_numbers(loads_LE: Floats, slots_LGS: Ints) -> Floats:
    """Return the load of the fullest GPU, `[L]`, each replica's load rounded down as searches count it (`layer`)."""
    weights_LE = np.floor(loads_LE / count_replicas(slots_LGS, loads_LE.shape[1]))
    fullest_L: Floats = gpu_loads(weights_LE, slots_LGS).max(axis=1)
    return fullest_L


def count_replicas(slots_LGS: Ints, num_experts: int) -> Ints:
    """Return how many slots hold each expert, `[L, E]`."""
    num_layers = len(slots_LGS)
    apart = slots_LGS.reshape(num_layers, -1) + num_experts * np.arange(num_layers)[:, None]
    return np.bincount(apart.ravel(), minlength=num_layers * num_experts).reshape(num_layers, num_experts)

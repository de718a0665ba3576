"""Loads that benchmarks of expert maps balance: seeded, multinomial, alone or as two windows.

The distribution is the planner's own (`planner/facts/drawn.py`). All layers have the alpha that a goal is promised
for, and experts no groups; numpy draws, as in the runs that the figures of the planner's README are from.
"""

import math
from collections import Counter
from statistics import NormalDist

import numpy as np

from planner.facts.drawn import popularity
from tests.planner.expert_map.drifting_windows import NUM_PAIRS


def draw(alpha, seed, num_layers=58, num_experts=256):
    """Loads `[num_layers, num_experts]`: popularity from the density x^-alpha on [1, 256], 8 million pairs a layer."""
    generator = np.random.default_rng(seed)
    return _count(generator, alpha, generator.random((num_layers, num_experts)))


def drift(alpha, rho, seed, num_layers=58, num_experts=256):
    """Two windows whose popularities are correlated by a Gaussian copula."""
    generator = np.random.default_rng(seed)
    first, fresh = generator.standard_normal((2, num_layers, num_experts))
    second = rho * first + math.sqrt(1 - rho**2) * fresh
    return [_count(generator, alpha, np.vectorize(NormalDist().cdf)(each)) for each in (first, second)]


def max_over_mean(loads, slots, num_gpus):
    """Load of the fullest GPU / mean, `[layers]`, for `slots` `[layers, num_slots]`."""
    layers = np.arange(len(loads))[:, None]
    counts = np.stack([np.bincount(row, minlength=loads.shape[1]) for row in slots])
    carried = (loads / counts)[layers, slots].reshape(len(loads), num_gpus, -1).sum(axis=2)
    return carried.max(axis=1) / carried.mean(axis=1)


def count_moves(slots, previous):
    """Slots, `[layers, gpus, slots]`, whose GPU did not hold their expert before, or not as often."""
    before, after = ([[Counter(gpu) for gpu in layer] for layer in each.tolist()] for each in (previous, slots))
    layers = zip(before, after, strict=True)
    return sum((new - old).total() for layer in layers for old, new in zip(*layer, strict=True))


def _count(generator, alpha, uniform):
    """Multinomial counts of experts whose popularity is that quantile of its distribution."""
    shares = np.vectorize(popularity)(uniform, alpha)
    shares /= shares.sum(axis=1, keepdims=True)
    return np.stack([generator.multinomial(NUM_PAIRS, row) for row in shares])

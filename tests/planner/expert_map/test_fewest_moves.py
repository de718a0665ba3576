"""The bound on moves that the benchmark prints, against every way there is."""

from itertools import permutations

import numpy as np
import pytest

from tests.benchmarks.fewest_moves import fewest_moves
from tests.planner.expert_map.every_map import every_map


@pytest.mark.parametrize("num_experts", [5, 6, 7])
def test_no_map_is_nearer_than_the_bound_says(num_experts):
    """Four GPUs of two slots, from a random map to every one that is even enough; most bounds are reached."""
    generator = np.random.default_rng(num_experts)
    held, counts = every_map(num_experts, 2, 4)
    orders = np.array(list(permutations(range(4))))
    num_reached = 0
    for _ in range(12):
        loads = generator.integers(1, 100, num_experts).astype(float)
        previous = held[generator.integers(len(held))]
        fullest = ((loads / counts)[:, None] * held).sum(axis=2).max(axis=1)
        level = np.quantile(fullest, 0.02) * (1 + 1e-9)
        kept = (held[fullest <= level][:, orders] & previous).sum(axis=(2, 3))
        slots = [np.flatnonzero(experts) for experts in previous]
        bound = fewest_moves(loads, slots, level)

        assert bound <= 8 - kept.max()
        num_reached += bound == 8 - kept.max()

    assert num_reached >= 8

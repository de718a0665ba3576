"""What the luck of one step adds to the fullest GPU, beside counted draws."""

import numpy as np
import pytest

from planner.estimate.sampled import max_over_mean_sampled
from planner.expert_map import Sizes, balance
from planner.facts.drawn import draw_loads


def counted(expert_map, loads, num_gpus, num_pairs, num_steps=400):
    """The mean of max over mean over steps of multinomial draws, layer by layer: slow, and plain."""
    generator, ratios = np.random.default_rng(5), []
    for slots, layer_loads in zip(expert_map.physical_to_logical, loads, strict=True):
        weights = np.array(layer_loads) / np.bincount(slots, minlength=len(layer_loads))
        shares = weights[list(slots)].reshape(num_gpus, -1).sum(axis=1)
        counts = generator.multinomial(num_pairs, shares / shares.sum(), num_steps)
        ratios.append((counts.max(axis=1) * num_gpus / num_pairs).mean())
    return ratios


@pytest.mark.parametrize(("pairs_a_gpu", "within"), [(3, 0.04), (20, 0.02), (1024, 0.005)])
@pytest.mark.parametrize(("num_slots", "num_gpus"), [(288, 32), (288, 144), (432, 144)])
def test_the_formula_is_what_draws_give(num_slots, num_gpus, pairs_a_gpu, within):
    """From 3 to 1,024 pairs a GPU and step, for maps that are even and maps that are not."""
    loads = draw_loads(1.01, 2, num_layers=2, num_experts=256)
    expert_map = balance(loads, num_slots, num_gpus)
    num_pairs = pairs_a_gpu * num_gpus
    sampled = max_over_mean_sampled(expert_map, loads, Sizes(num_slots, num_gpus), num_pairs)

    assert sampled == pytest.approx(counted(expert_map, loads, num_gpus, num_pairs), rel=within)


def test_more_tokens_bring_a_step_nearer_to_the_expectation():
    """Never below it, and equal in the end."""
    loads = draw_loads(1.01, 2, num_layers=2, num_experts=64)
    expert_map, sizes = balance(loads, 72, 8), Sizes(72, 8)
    steps = [max_over_mean_sampled(expert_map, loads, sizes, num_pairs) for num_pairs in (10**2, 10**4, 10**10)]

    assert steps[0] > steps[1] > steps[2]
    assert steps[2] == pytest.approx(expert_map.max_over_mean, abs=3e-4)

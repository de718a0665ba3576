"""Drawn loads: what they are calibrated to, and what holds for any of them."""

import numpy as np
import pytest

from planner.expert_map import balance
from planner.facts.drawn import draw_loads
from tests.planner.expert_map.drifting_windows import draw_windows

NO_BALANCING, NINE_SLOTS = 1.564, 0.109  # TensorRT-LLM, DeepSeek-R1 at EP32: (max - mean) / mean of ranks


def imbalance(loads, slots, num_ranks):
    """The mean over layers of (max - mean) / mean load of ranks, tokens split equally among replicas."""
    counts = np.stack([np.bincount(row, minlength=np.shape(loads)[1]) for row in slots])
    carried = np.take_along_axis(loads / counts, slots, axis=1).reshape(len(slots), num_ranks, -1).sum(axis=2)
    return (carried.max(axis=1) / carried.mean(axis=1) - 1).mean()


def test_experts_in_order_are_as_uneven_as_published():
    """256 experts on 32 ranks without balancing, the mean of five seeds, within 2 %."""
    in_order = np.tile(np.arange(256), (58, 1))
    drawn = [imbalance(np.array(draw_loads(1.01, seed, 58, 256, 8)), in_order, 32) for seed in range(5)]

    assert np.mean(drawn) == pytest.approx(NO_BALANCING, rel=0.02)


def test_a_map_of_nine_slots_is_as_uneven_in_the_next_window_as_published():
    """The map is made for one window and met by the next: within 5 %, the mean of two seeds."""
    reached = []
    for seed in range(2):
        before, after = draw_windows(1.01, seed, 58, 256, 8, 2)
        slots = np.array(balance(before, 288, 32, "fast").physical_to_logical)
        reached.append(imbalance(np.array(after), slots, 32))

    assert np.mean(reached) == pytest.approx(NINE_SLOTS, rel=0.05)


def test_windows_count_every_pair_and_drift():
    """Each layer of each window has its pairs; windows far apart are less alike than neighbours, layers not at all."""
    first, second, *_, last = np.array(draw_windows(1.2, 3, 6, 64, 4, 10, 0.9, num_pairs=100_000), dtype=float)
    near, far, other_layers = (
        np.mean([np.corrcoef(*rows)[0, 1] for rows in zip(first, each, strict=True)])
        for each in (second, last, first[::-1])
    )

    assert all((window.sum(axis=1) == 100_000).all() for window in (first, second, last))
    assert near > 0.6 > far > other_layers


def test_experts_of_a_group_are_hot_together():
    """Sums of groups vary more than those of as many experts picked across groups."""
    loads = np.array(draw_loads(1.01, 1, 58, 256, 8), dtype=float)
    of_groups, across = loads.reshape(58, 8, 32).sum(axis=2), loads.reshape(58, 32, 8).sum(axis=1)

    assert of_groups.std() > 1.5 * across.std()


def test_the_same_seed_draws_the_same_and_another_does_not():
    """Loads and windows alike."""
    assert draw_loads(1.01, 7, 3, 16, 4) == draw_loads(1.01, 7, 3, 16, 4) != draw_loads(1.01, 8, 3, 16, 4)
    assert (
        draw_windows(1.01, 7, 2, 16, 4, 2) == draw_windows(1.01, 7, 2, 16, 4, 2) != draw_windows(1.01, 8, 2, 16, 4, 2)
    )

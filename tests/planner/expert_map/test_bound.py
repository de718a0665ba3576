"""The bound is below every map, and says what binds."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.expert_map import Sizes, balance
from planner.expert_map.bound import compute_bounds
from planner.expert_map.weigh import scale
from planner.facts.drawn import draw_loads
from tests.planner.expert_map.every_map import optimum, small_sizes


@st.composite
def small_problems(draw):
    """Draw at most 6 experts in at most 8 slots on at most 4 GPUs: few enough maps to try them all."""
    num_gpus = draw(st.integers(2, 4))
    slots_per_gpu = draw(st.integers(1, 8 // num_gpus))
    num_slots = num_gpus * slots_per_gpu
    num_experts = draw(st.integers(slots_per_gpu, min(6, num_slots)))
    loads = draw(st.lists(st.integers(0, 100), min_size=num_experts, max_size=num_experts))
    return loads, num_slots, num_gpus


@pytest.mark.slow
@given(small_problems())
@example(([2, 2, 2, 3], 6, 2))  # companions that are light because the heavy ones have replicas
@example(([5, 7, 7, 8, 7], 10, 2))  # every GPU holds every expert: none is heavy for want of slots
def test_no_map_is_below_the_bound(problem):
    """Bound <= optimum <= ours, for every map of a small problem."""
    loads, num_slots, num_gpus = problem
    best = optimum(loads, num_slots, num_gpus)
    ours = balance((tuple(loads),), num_slots, num_gpus)

    assert ours.bound[0] - 1e-6 <= best <= ours.max_over_mean[0] + 1e-6


@pytest.mark.slow
def test_small_maps_are_optimal():
    """Loads of every small size: at least 95 % of maps are optimal, the others within 1 %, and no bound is above."""
    generator = random.Random(0)
    cases = [(size, [generator.randint(0, 100) for _ in range(size[0])]) for size in small_sizes() for _ in range(2)]
    ours = [balance((tuple(loads),), num_slots, num_gpus) for (_, num_slots, num_gpus), loads in cases]
    optima = [optimum(loads, num_slots, num_gpus) for (_, num_slots, num_gpus), loads in cases]
    excess = [each.max_over_mean[0] / best - 1 for each, best in zip(ours, optima, strict=True)]

    assert sum(more < 2e-6 for more in excess) >= 0.95 * len(cases)
    assert max(excess) <= 0.01
    assert all(each.bound[0] <= best + 1e-6 for each, best in zip(ours, optima, strict=True))


@pytest.mark.parametrize("alpha", [0.6, 1.01, 1.2])
def test_slots_bind_decode_with_two_slots_a_gpu(alpha):
    """EP144 with 288 slots: the largest replica and its companion keep the map where it is, within 1 %."""
    expert_map = balance(draw_loads(alpha, 1, num_layers=8, num_experts=256), num_slots=288, num_gpus=144)

    assert set(expert_map.binding) == {"packing"}
    for reached, bound in zip(expert_map.max_over_mean, expert_map.bound, strict=True):
        assert bound <= reached <= 1.01 * bound


def test_heavy_pairs_bind_if_there_are_more_than_gpus():
    """Three GPUs, five heavy experts, one redundant slot: two share a GPU, beside half of a light one at best."""
    sizes = Sizes(num_slots=9, num_gpus=3)
    bound, kinds = compute_bounds(scale([[60, 60, 60, 60, 60, 1, 1, 1]]), sizes, within_nodes=False)

    assert kinds == ("pairs",)
    assert bound[0] == pytest.approx(120.5 / 101, rel=1e-4)


def test_with_one_slot_a_gpu_the_largest_replica_binds():
    """There are no companions, and every map that counts replicas well is optimal."""
    bound, kinds = compute_bounds(scale([[90, 10, 20, 30]]), Sizes(num_slots=5, num_gpus=5), within_nodes=False)

    assert kinds == ("replicas",)
    assert bound[0] == pytest.approx(45 / 30)


def test_nothing_but_the_mean_binds_even_loads():
    """Equal experts, equally many a GPU."""
    bound, kinds = compute_bounds(
        scale([[7, 7, 7, 7], [0, 0, 0, 0]]), Sizes(num_slots=4, num_gpus=2), within_nodes=False
    )

    assert bound.tolist() == pytest.approx([1.0, 1.0])
    assert kinds[0] == "mean"

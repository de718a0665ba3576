"""The bound is below every map, and says what binds."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.expert_map import Sizes, balance, draw_loads
from planner.expert_map.bound import bind
from planner.expert_map.weigh import scale


@st.composite
def small_problems(draw):
    """At most 6 experts in at most 8 slots on at most 4 GPUs: few enough maps to try them all."""
    num_gpus = draw(st.integers(2, 4))
    slots_per_gpu = draw(st.integers(1, 8 // num_gpus))
    num_slots = num_gpus * slots_per_gpu
    num_experts = draw(st.integers(slots_per_gpu, min(6, num_slots)))
    loads = draw(st.lists(st.integers(0, 100), min_size=num_experts, max_size=num_experts))
    return loads, num_slots, num_gpus


def optimum(loads, num_slots, num_gpus):
    """The lowest max over mean of all maps that hold no expert twice on a GPU, tried one by one."""
    num_experts, slots_per_gpu = len(loads), num_slots // num_gpus
    if sum(loads) == 0:
        return 1.0
    subsets = [bits for bits in range(2**num_experts) if bits.bit_count() == slots_per_gpu]
    held = np.array([[bits >> expert & 1 for expert in range(num_experts)] for bits in subsets])
    maps = np.array(list(combinations_with_replacement(range(len(subsets)), num_gpus)))
    counts = held[maps].sum(axis=1)
    complete = counts.min(axis=1) > 0
    weights = np.array(loads) / counts[complete]
    carried = np.einsum("mge,me->mg", held[maps[complete]], weights)
    return carried.max(axis=1).min() * num_gpus / sum(loads)


@settings(max_examples=300, deadline=None)
@given(small_problems())
@example(([2, 2, 2, 3], 6, 2))  # companions that are light because the heavy ones have replicas
def test_no_map_is_below_the_bound(problem):
    """Bound <= optimum <= ours, for every map of a small problem."""
    loads, num_slots, num_gpus = problem
    best = optimum(loads, num_slots, num_gpus)
    ours = balance((tuple(loads),), num_slots, num_gpus)

    assert ours.bound[0] - 1e-6 <= best <= ours.max_over_mean[0] + 1e-6


@pytest.mark.parametrize("alpha", [0.6, 1.01, 1.2])
def test_slots_bind_decode_with_two_slots_a_gpu(alpha):
    """EP144 with 288 slots: the largest replica and its companion keep the map where it is, within 1 %."""
    expert_map = balance(draw_loads(alpha, 1, num_layers=8, num_experts=256), num_slots=288, num_gpus=144)

    assert set(expert_map.binding) == {"packing"}
    for reached, bound in zip(expert_map.max_over_mean, expert_map.bound, strict=True):
        assert bound <= reached <= 1.01 * bound


def test_with_one_slot_a_gpu_the_largest_replica_binds():
    """There are no companions, and every map that counts replicas well is optimal."""
    bound, kinds = bind(scale([[90, 10, 20, 30]]), Sizes(num_slots=5, num_gpus=5), within_nodes=False)

    assert kinds == ("replicas",)
    assert bound[0] == pytest.approx(45 / 30)


def test_nothing_but_the_mean_binds_even_loads():
    """Equal experts, equally many a GPU."""
    bound, kinds = bind(scale([[7, 7, 7, 7], [0, 0, 0, 0]]), Sizes(num_slots=4, num_gpus=2), within_nodes=False)

    assert bound.tolist() == pytest.approx([1.0, 1.0])
    assert kinds[0] == "mean"

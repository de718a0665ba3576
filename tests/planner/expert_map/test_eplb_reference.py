"""The references that our maps are compared with are DeepSeek's EPLB."""

import numpy as np
import pytest

from planner.facts.drawn import draw_loads
from tests.planner.expert_map.eplb_reference import rebalance_experts

LOADS = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
PUBLISHED = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def test_the_published_example_comes_out_as_published():
    """EPLB's README: 12 experts in 4 groups, 16 replicas on 8 GPUs of 2 nodes."""
    slots = rebalance_experts(LOADS, num_slots=16, num_groups=4, num_nodes=2, num_gpus=8)

    assert slots.tolist() == PUBLISHED


@pytest.mark.slow
def test_the_benchmark_reference_makes_the_published_example():
    """The benchmark's reference uses torch where the published code does."""
    published = pytest.importorskip("tests.benchmarks.eplb_published", exc_type=ImportError)
    slots, _, _ = published.rebalance_experts(LOADS, num_slots=16, num_groups=4, num_nodes=2, num_gpus=8)

    assert slots.tolist() == PUBLISHED


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [8, 1])
def test_both_references_balance_alike(num_groups):
    """To the last bit: what a GPU carries does not depend on the order of equally heavy replicas, which is torch's."""
    published = pytest.importorskip("tests.benchmarks.eplb_published", exc_type=ImportError)
    loads = np.array(draw_loads(1.01, 5, num_layers=12, num_experts=64))
    sizes = {"num_slots": 80, "num_groups": num_groups, "num_nodes": 4, "num_gpus": 16}
    slots, slots_of_experts, counts = published.rebalance_experts(loads, **sizes)
    gpu_loads = [
        np.sort(np.take_along_axis(loads / counts.numpy(), each, axis=1).reshape(12, 16, 5)).sum(axis=2)
        for each in (slots.numpy(), rebalance_experts(loads, **sizes))
    ]

    assert np.array_equal(np.sort(gpu_loads[0]), np.sort(gpu_loads[1]))
    assert (counts.numpy() == (slots_of_experts.numpy() >= 0).sum(axis=2)).all()

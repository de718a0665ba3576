"""The reference that our maps are compared with is DeepSeek's EPLB."""

from tests.planner.expert_map.eplb_reference import rebalance_experts

LOADS = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]


def test_the_published_example_comes_out_as_published():
    """EPLB's README: 12 experts in 4 groups, 16 replicas on 8 GPUs of 2 nodes."""
    slots = rebalance_experts(LOADS, num_slots=16, num_groups=4, num_nodes=2, num_gpus=8)

    assert slots.tolist() == [
        [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
    ]

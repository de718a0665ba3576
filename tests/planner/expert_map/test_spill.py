"""Groups stay on nodes but for a few experts, and what that costs in bytes is counted."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from planner.expert_map import Sizes, balance
from planner.expert_map.front import find_home_nodes, make_front, num_crossings
from planner.facts.drawn import draw_loads
from planner.facts.gate import Gate
from tests.benchmarks.drifting_loads import max_over_mean
from tests.planner.expert_map.eplb_reference import rebalance_experts

LOADS = draw_loads(1.2, 3, num_layers=4, num_experts=128)
SIZES = {"num_slots": 144, "num_gpus": 16, "num_nodes": 4, "num_groups": 8}


@pytest.fixture(scope="module")
def spilled():
    """The map that `auto` makes."""
    return balance(LOADS, **SIZES)


def test_a_few_replicas_elsewhere_break_the_bound_of_whole_groups(spilled):
    """Far more even than any map that keeps groups whole, and no layer worse than EPLB's."""
    whole = balance(LOADS, **SIZES, policy="hierarchical")
    reference = max_over_mean(np.array(LOADS), rebalance_experts(LOADS, 144, 8, 4, 16), 16)

    assert np.mean(spilled.max_over_mean) < 1.01 < np.mean(whole.bound)
    assert (np.array(spilled.max_over_mean) <= reference + 1e-6).all()


def test_each_expert_keeps_most_slots_on_its_groups_node(spilled):
    """Fewer than one slot in ten is elsewhere."""
    slots = np.array(spilled.physical_to_logical)
    homes = find_home_nodes(np.array(LOADS), slots.reshape(4, 16, 9), Sizes(**SIZES))
    is_away = np.take_along_axis(homes, slots, axis=1) != np.arange(144) // 36

    assert 0 < is_away.mean() < 0.1
    assert all(len(set(gpu)) == 9 for layer in slots.reshape(4, 16, 9).tolist() for gpu in layer)
    assert all(set(layer) == set(range(128)) for layer in slots.tolist())


def test_the_front_trades_bytes_for_balance_and_auto_takes_its_knee(spilled):
    """Each point is more even and costs more; the chosen one has the least max/mean x bytes, and the reason says so."""
    balances = [point.max_over_mean for point in spilled.front]
    costs = [point.extra_bytes_per_token for point in spilled.front]

    assert balances == sorted(balances, reverse=True)
    assert costs == sorted(costs)
    assert costs[0] == 0
    assert spilled.dispatch == min(spilled.front, key=lambda point: point.max_over_mean * point.bytes_ratio)
    assert "knee" in spilled.policy_reason


def test_hardly_more_is_served_elsewhere_than_must_be(spilled):
    """What nodes with whole groups have above what their GPUs carry now is to be elsewhere, and little more is."""
    loads, slots = np.array(LOADS), np.array(spilled.physical_to_logical)
    whole = np.array(balance(LOADS, **SIZES, policy="hierarchical", effort="fast").physical_to_logical)
    homes = find_home_nodes(loads, whole.reshape(4, 16, 9), Sizes(**SIZES))
    nodes = np.stack([np.bincount(of_layer, row, minlength=4) for of_layer, row in zip(homes, loads, strict=True)])
    gpu_loads = np.array(spilled.max_over_mean)[:, None] * loads.sum(axis=1, keepdims=True) / 4
    parts = np.take_along_axis(loads / np.stack([np.bincount(row) for row in slots]), slots, axis=1)
    elsewhere = parts[np.take_along_axis(homes, slots, axis=1) != np.arange(144) // 36].sum()
    least = np.maximum(nodes - gpu_loads, 0).sum()

    assert 0 < least <= elsewhere < 1.1 * least


def test_bytes_are_counted_by_the_formula():
    """Three of eight experts are on both of two nodes, and each choice of four groups is counted by hand.

    A third of expert 0 and half of 4 and 5 are on node 0, with experts 1 to 3. Each group of one expert gets two pairs,
    so a token misses node 0 with (2/3)^2 for expert 0 and 1/4 for 4 and 5.
    """
    loads = np.array([[8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]])
    slots = np.array([[[0, 1], [2, 3], [4, 5], [6, 7], [0, 4], [5, 0]]])  # three GPUs on each of two nodes
    (point,) = make_front(loads, slots[None], Sizes(12, 6, 2, 8), ["hierarchical"])
    misses = [[4 / 9, 0, 0, 0, 1 / 4, 1 / 4, 1, 1], [1 / 9, 1, 1, 1, 1 / 4, 1 / 4, 0, 0]]
    missed = [np.mean([np.prod(four) for four in combinations(of_node, 4)]) for of_node in misses]
    crossings = sum(1 / 2 * (1 - each) for each in missed)
    whole = 1 - comb(4, 4) / comb(8, 4)

    assert point.extra_bytes_per_token == pytest.approx((crossings - whole) * 7392, abs=1e-3)
    assert point.bytes_per_token == pytest.approx(whole * 7392, abs=1e-3)


def test_the_front_is_of_the_models_own_gate(spilled):
    """As of DeepSeek-V2: 6 experts in 3 of 8 groups, and 5,280 B a copy, so that whole groups cross less."""
    found = balance(LOADS, **SIZES, gate=Gate(experts_per_token=6, groups_per_token=3, copy_bytes=5280))
    whole = 3 * (1 - comb(6, 3) / comb(8, 3))

    assert found.front[0].bytes_per_token == pytest.approx(whole * 5280, abs=1e-3)
    assert found.front[-1].bytes_ratio > spilled.front[-1].bytes_ratio  # groups are worth more where few are picked


def test_a_small_share_served_elsewhere_crosses_in_proportion():
    """One pair in a hundred of a group crosses if none of three more of seven groups is on the other node."""
    loads = np.full((1, 8), 8.0)
    slots = np.array([*[0] * 99, *[1, 2, 3] * 33, *[4, 5, 6, 7] * 49, 0, 4]).reshape(1, 2, -1)
    (crossings,) = num_crossings(loads, slots, Sizes(396, 2, 2, 8))
    alone = comb(3, 3) / comb(7, 3) * (1 - 1 / 2)
    whole = 1 - comb(4, 4) / comb(8, 4)

    assert crossings - whole == pytest.approx(8 * (1 / 8) * (1 / 100) * alone, rel=0.03)


def test_where_groups_are_on_all_nodes_a_token_is_routed_as_without_groups():
    """Eight pairs over four nodes: each node is missed with probability (3/4)^8, and 2.70 are crossed to."""
    slots = np.tile(np.arange(128), 4).reshape(1, 16, 32)
    (crossings,) = num_crossings(np.ones((1, 128)), slots, Sizes(512, 16, 4, 8))

    assert crossings == pytest.approx(3 * (1 - (3 / 4) ** 8))


def test_a_drifted_window_moves_few_slots_and_none_when_unchanged(spilled):
    """From the map in service, at no less than EPLB's balance for the new loads."""
    drifted = [[load * (1 + (expert % 5) / 5) for expert, load in enumerate(layer)] for layer in LOADS]
    reference = max_over_mean(np.array(drifted), rebalance_experts(drifted, 144, 8, 4, 16), 16)
    renewed = balance(drifted, **SIZES, previous=spilled.physical_to_logical)

    assert balance(LOADS, **SIZES, previous=spilled.physical_to_logical).moved_slots == 0
    assert renewed.moved_slots < 0.3 * 4 * 144
    assert (np.array(renewed.max_over_mean) <= reference + 1e-6).all()


@pytest.fixture(scope="module")
def hot_loads():
    """Some experts have a hundred times the mean, more than two nodes together can carry evenly."""
    return np.random.default_rng(0).pareto(1.0, (4, 128)) * 1000


@pytest.fixture(scope="module")
def scattered(hot_loads):
    """The map that `auto` makes of them."""
    return balance(hot_loads, **SIZES)


def test_auto_ignores_groups_if_balance_is_worth_the_bytes(hot_loads, scattered):
    """It takes the global map if the best of the others is far less even, and it is as good as the policy `global`."""
    asked_for = balance(hot_loads, **SIZES, policy="global")

    assert scattered.policy == scattered.dispatch.policy == "global"
    assert "no group does" in scattered.policy_reason
    assert np.mean(scattered.max_over_mean) <= np.mean(asked_for.max_over_mean) + 0.001
    assert min(point.max_over_mean for point in scattered.front if point.policy == "hierarchical") > 1.2


def test_the_front_ends_with_the_global_map(spilled, scattered):
    """The most even, for the most bytes, whether it is taken or not."""
    for each in (spilled, scattered):
        policies = [point.policy for point in each.front]
        assert policies == ["hierarchical"] * (len(policies) - 1) + ["global"]
        assert each.front[-1].max_over_mean == min(point.max_over_mean for point in each.front)
        assert each.dispatch.policy == each.policy


def test_auto_is_best_by_its_own_measure(spilled, scattered):
    """No point of the front, and no other policy's map, has less max/mean x bytes."""
    for each in (spilled, scattered):
        least = min(point.max_over_mean * point.bytes_ratio for point in each.front)
        assert each.dispatch.max_over_mean * each.dispatch.bytes_ratio == least


def test_no_point_of_a_front_beats_another_in_both(spilled, scattered):
    """More even always costs more bytes."""
    for each in (spilled, scattered):
        for one, other in combinations(each.front, 2):
            is_same = one == other
            assert is_same or one.extra_bytes_per_token < other.extra_bytes_per_token
            assert is_same or one.max_over_mean > other.max_over_mean


def test_a_map_without_groups_stays_in_service(hot_loads, scattered):
    """Nothing moves for the loads that it was made for, and little for others."""
    again = balance(hot_loads, **SIZES, previous=scattered.physical_to_logical)
    drifted = hot_loads * (1 + (np.arange(128) % 5) / 20)
    renewed = balance(drifted, **SIZES, previous=scattered.physical_to_logical)

    assert (again.policy, again.moved_slots) == ("global", 0)
    assert renewed.policy == renewed.dispatch.policy == "global"
    assert renewed.moved_slots < 0.3 * 4 * 144


@pytest.mark.parametrize(
    ("num_gpus", "num_nodes", "policies", "reason"),
    [
        (32, 4, {"hierarchical", "global"}, "8 groups stay whole on 4 nodes"),  # DeepSeek's prefill unit
        (144, 18, set(), "8 groups cannot spread evenly over 18 nodes"),  # and its decode unit
        (8, 1, set(), "one node"),
    ],
)
def test_groups_are_weighed_if_nodes_can_hold_them(num_gpus, num_nodes, policies, reason):
    """DeepSeek-V3's 8 groups give one front for EP32, and the global map if groups cannot stay on nodes."""
    loads = draw_loads(1.01, 0, num_layers=2, num_experts=256, num_groups=8)
    found = balance(loads, 288, num_gpus, num_nodes=num_nodes, num_groups=8)

    assert {point.policy for point in found.front} == policies
    assert found.policy_reason.startswith(reason)
    assert found.policy == (found.dispatch.policy if policies else "global")

"""Groups stay on nodes but for a few experts, and what that costs in bytes is counted."""

from math import comb

import numpy as np
import pytest

from planner.expert_map import Sizes, balance
from planner.expert_map.front import BYTES_PER_CROSSING, front_of, homes_of_groups
from planner.facts.drawn import draw_loads
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
    homes = homes_of_groups(np.array(LOADS), slots.reshape(4, 16, 9), Sizes(**SIZES))
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
    homes = homes_of_groups(loads, whole.reshape(4, 16, 9), Sizes(**SIZES))
    nodes = np.stack([np.bincount(of_layer, row, minlength=4) for of_layer, row in zip(homes, loads, strict=True)])
    carried = np.array(spilled.max_over_mean)[:, None] * loads.sum(axis=1, keepdims=True) / 4
    parts = np.take_along_axis(loads / np.stack([np.bincount(row) for row in slots]), slots, axis=1)
    elsewhere = parts[np.take_along_axis(homes, slots, axis=1) != np.arange(144) // 36].sum()
    least = np.maximum(nodes - carried, 0).sum()

    assert 0 < least <= elsewhere < 1.1 * least


def test_bytes_are_counted_by_the_formula():
    """A third of three experts is served elsewhere, where 1 of 35 ways to choose three more groups has no expert."""
    loads = np.array([[8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]])
    slots = np.array([[[0, 1], [2, 3], [4, 5], [6, 7], [0, 4], [5, 0]]])  # three GPUs on each of two nodes
    homes = np.array([[0, 0, 0, 0, 1, 1, 1, 1]])
    (point,) = front_of(loads, slots[None], homes, Sizes(12, 6, 2, 8))
    served_elsewhere = (8 * 2 / 3 + 8 / 2 + 8 / 2) / 64  # of experts 0, 4 and 5
    alone = comb(3, 3) / comb(7, 3) * (1 - 1 / 2)

    assert point.extra_bytes_per_token == pytest.approx(served_elsewhere * 8 * alone * BYTES_PER_CROSSING, abs=1e-3)
    assert point.bytes_per_token == pytest.approx((1 - comb(4, 4) / comb(8, 4)) * BYTES_PER_CROSSING, abs=1e-3)


def test_a_drifted_window_moves_few_slots_and_none_when_unchanged(spilled):
    """From the map in service, at no less than EPLB's balance for the new loads."""
    drifted = [[load * (1 + (expert % 5) / 5) for expert, load in enumerate(layer)] for layer in LOADS]
    reference = max_over_mean(np.array(drifted), rebalance_experts(drifted, 144, 8, 4, 16), 16)
    renewed = balance(drifted, **SIZES, previous=spilled.physical_to_logical)

    assert balance(LOADS, **SIZES, previous=spilled.physical_to_logical).moved_slots == 0
    assert renewed.moved_slots < 0.3 * 4 * 144
    assert (np.array(renewed.max_over_mean) <= reference + 1e-6).all()

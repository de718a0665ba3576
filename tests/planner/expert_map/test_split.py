"""The split rules that look at places: what GPUs carry under them, and maps that are even under them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.expert_map import balance, consecutive_domains, count_uncovered
from planner.expert_map.native import gpu_loads
from planner.expert_map.weigh import scale
from planner.facts.drawn import draw_loads
from tests.planner.expert_map.split_reference import carried_under

pytestmark = pytest.mark.slow

RULES = ("local_first", "first_on_node")


@st.composite
def problems(draw):
    """Loads of one layer and sizes: nodes, GPUs of a node, slots of a GPU."""
    num_nodes, per_node, slots_per_gpu = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    num_slots = num_nodes * per_node * slots_per_gpu
    num_experts = draw(st.integers(slots_per_gpu, num_slots))
    loads = draw(st.lists(st.integers(0, 1000), min_size=num_experts, max_size=num_experts))
    return tuple(loads), num_slots, num_nodes * per_node, num_nodes


def targets(split, source, holders, per_node):
    """The GPUs that a source's tokens may go to, of those that hold the expert: one for each replica, rising."""
    own = [gpu for gpu in holders if gpu == source]
    near = [gpu for gpu in holders if gpu // per_node == source // per_node]
    if split == "local_first":
        return own or near or holders
    return own[:1] or (near[:1] if len(near) < len(holders) else []) or holders


def carried_slowly(split, loads, gpus, num_nodes):
    """Source by source: each GPU has an equal share of each expert's tokens, and sends it as the rule says."""
    per_node, gpu_loads = len(gpus) // num_nodes, np.zeros(len(gpus))
    for source in range(len(gpus)):
        for expert, load in enumerate(loads):
            holders = [gpu for gpu, held in enumerate(gpus) for each in held if each == expert]
            chosen = targets(split, source, holders, per_node)
            for gpu in chosen:
                gpu_loads[gpu] += load / len(gpus) / len(chosen)
    return gpu_loads


@pytest.mark.parametrize("split", RULES)
@given(problem=problems())
def test_gpu_loads_equal_what_sources_send(split, problem):
    """The formula equals the sum over sources, and the map's max over mean is that of its GPU loads."""
    loads, num_slots, num_gpus, num_nodes = problem
    expert_map = balance((loads,), num_slots, num_gpus, num_nodes=num_nodes, split=split)
    gpus = np.array(expert_map.physical_to_logical[0]).reshape(num_gpus, -1)
    slowly = carried_slowly(split, loads, gpus.tolist(), num_nodes)
    mean = sum(loads) / num_gpus or 1.0

    assert carried_under(split, np.array(loads, dtype=float), gpus, num_nodes) == pytest.approx(slowly)
    (scaled,), (ours,) = scale([loads]), gpu_loads(scale([loads]), gpus[None], split, num_nodes)
    assert ours == pytest.approx(carried_under(split, scaled, gpus, num_nodes), abs=num_slots)
    assert expert_map.split == split
    assert expert_map.max_over_mean[0] == pytest.approx(slowly.max() / mean if sum(loads) else 1.0, abs=2e-6)
    assert expert_map.bound[0] <= expert_map.max_over_mean[0] + 1e-6


@pytest.mark.parametrize("split", RULES)
@given(problem=problems())
def test_a_map_for_local_tokens_is_no_less_even_under_their_rule(split, problem):
    """Than the map for equal shares; every expert has a slot, and none two on a GPU."""
    loads, num_slots, num_gpus, num_nodes = problem
    equal = balance((loads,), num_slots, num_gpus, num_nodes=num_nodes)
    local = balance((loads,), num_slots, num_gpus, num_nodes=num_nodes, split=split)
    gpus = [np.array(each.physical_to_logical[0]).reshape(num_gpus, -1) for each in (equal, local)]
    before, after = (carried_under(split, np.array(loads, dtype=float), each, num_nodes).max() for each in gpus)

    assert after <= before * (1 + 1e-6) + 1e-6
    assert set(local.physical_to_logical[0]) == set(range(len(loads)))
    assert all(len(set(held)) == len(held) for held in gpus[1].tolist())


def test_decode_with_a_third_slot_is_mended():
    """EP144 on 18 nodes, three replicas here and two there: the map for equal shares is uneven under the rule."""
    loads = draw_loads(1.01, 0, num_layers=4, num_experts=256)
    local = balance(loads, 432, 144, num_nodes=18, split="local_first")
    equal = np.array(balance(loads, 432, 144, num_nodes=18).physical_to_logical).reshape(4, 144, 3)
    under_rule = [
        carried_under("local_first", np.array(row), slots, 18) for row, slots in zip(loads, equal, strict=True)
    ]
    ratios = [gpu_loads.max() / gpu_loads.mean() for gpu_loads in under_rule]

    assert np.mean(local.max_over_mean) < 1.02 < np.mean(ratios)


def test_replicas_on_one_node_are_separated_under_first_on_node():
    """EP144 on 18 nodes, three slots a GPU.

    The map for equal shares is uneven under `first_on_node`, and is improved.
    """
    loads = draw_loads(1.01, 0, num_layers=2, num_experts=256)
    mended = balance(loads, 432, 144, num_nodes=18, split="first_on_node")
    equal = np.array(balance(loads, 432, 144, num_nodes=18).physical_to_logical).reshape(2, 144, 3)
    under_rule = [carried_under("first_on_node", np.array(row), s, 18) for row, s in zip(loads, equal, strict=True)]
    ratios = [gpu_loads.max() / gpu_loads.mean() for gpu_loads in under_rule]

    assert np.mean(mended.max_over_mean) < 1.04 < np.mean(ratios)


@pytest.mark.parametrize("split", RULES)
def test_coverage_and_a_map_that_is_good_stay(split):
    """Swaps then stay inside nodes; and on unchanged loads nothing moves."""
    loads = draw_loads(1.01, 0, num_layers=3, num_experts=32)
    sizes = {"num_nodes": 4, "split": split, "domains": consecutive_domains(16, 4)}
    first = balance(loads, 80, 16, **sizes)
    second = balance(loads, 80, 16, **sizes, previous=first.physical_to_logical)

    assert count_uncovered(first.physical_to_logical, consecutive_domains(16, 4)) == 0
    assert second.moved_slots == 0

"""How experts are called decides nothing: their loads do, and the map in service."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.expert_map import Sizes, balance, consecutive_domains

pytestmark = pytest.mark.slow

SIZES = Sizes(num_slots=32, num_gpus=8, num_nodes=2, num_groups=4)
NUM_EXPERTS = 12
RULES = {
    "global": {"policy": "global"},
    "whole groups": {"policy": "hierarchical"},
    "spilled groups": {"policy": "auto"},
    "covered": {"domains": consecutive_domains(8, 4)},
    "local first": {"policy": "global", "split": "local_first"},
    "local first, whole groups": {"policy": "hierarchical", "split": "local_first"},
}


def made(loads, effort, rule, previous=None):
    sizes = {"num_nodes": SIZES.num_nodes, "num_groups": SIZES.num_groups}
    return balance((tuple(loads),), SIZES.num_slots, SIZES.num_gpus, effort, **sizes, **RULES[rule], previous=previous)


def exactly(size):
    return {"min_size": size, "max_size": size}


def distinct(num_experts):
    return st.lists(st.integers(0, 1000), **exactly(num_experts), unique=True)


def renumberings(rule):
    """The old number of each expert; of groups as wholes, and inside them, where they are to stay together."""
    if RULES[rule].get("policy", "global") == "global":
        return st.permutations(range(NUM_EXPERTS))
    size = NUM_EXPERTS // SIZES.num_groups
    inside = st.tuples(*[st.permutations(range(start, start + size)) for start in range(0, NUM_EXPERTS, size)])
    return inside.flatmap(st.permutations).map(lambda groups: [old for group in groups for old in group])


def held(expert_map, num_gpus=SIZES.num_gpus, old_numbers=range(NUM_EXPERTS)):
    """The experts of each GPU, by their numbers from before."""
    slots = np.array(old_numbers)[np.array(expert_map.physical_to_logical)]
    return np.sort(slots.reshape(num_gpus, -1), axis=1).tolist()


def said(expert_map):
    """Return all that is said of a map, without which slots hold what."""
    return replace(expert_map, physical_to_logical=())


@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("effort", ["fast", "refined"])
@pytest.mark.parametrize("rule", RULES)
def test_permuting_experts_permutes_the_map(rule, effort, data):
    """Each GPU holds the same experts under their other numbers, and everything said of the map stays."""
    loads, order = data.draw(distinct(NUM_EXPERTS)), data.draw(renumberings(rule))
    one = made(loads, effort, rule)
    other = made([loads[old] for old in order], effort, rule)

    assert bool(one.front) == (rule == "spilled groups" and effort == "refined")
    assert held(other, old_numbers=order) == held(one)
    assert said(other) == said(one)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("rule", RULES)
def test_permuting_experts_permutes_a_renewed_map(rule, data):
    """The same experts move, and experts of equal load are ordered by their slots in the map in service."""
    before, loads = data.draw(distinct(NUM_EXPERTS)), data.draw(st.lists(st.integers(0, 9), **exactly(NUM_EXPERTS)))
    order = data.draw(renumberings(rule))
    (previous,) = made(before, "refined", rule).physical_to_logical
    renumbered = tuple(order.index(expert) for expert in previous)
    one = made(loads, "refined", rule, (previous,))
    other = made([loads[old] for old in order], "refined", rule, (renumbered,))

    assert [order[number] for number in other.physical_to_logical[0]] == list(one.physical_to_logical[0])
    assert said(other) == said(one)


@given(data=st.data())
@pytest.mark.parametrize("effort", ["fast", "refined"])
def test_experts_of_equal_load_are_interchangeable(effort, data):
    """For any sizes and loads, ties and zeros too, permuting experts permutes what slots carry."""
    num_gpus, slots_per_gpu = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    num_experts = data.draw(st.integers(slots_per_gpu, num_gpus * slots_per_gpu))
    loads = data.draw(st.lists(st.integers(0, 5) | st.integers(0, 2**53), **exactly(num_experts)))
    order = data.draw(st.permutations(range(num_experts)))
    permuted = [loads[old] for old in order]
    one, other = (balance((tuple(each),), num_gpus * slots_per_gpu, num_gpus, effort) for each in (loads, permuted))

    assert gpu_loads(permuted, other, num_gpus) == gpu_loads(loads, one, num_gpus)
    assert said(other) == said(one)


def gpu_loads(loads, expert_map, num_gpus):
    """The loads of the experts of each GPU."""
    slots = np.array(loads)[np.array(expert_map.physical_to_logical)]
    return np.sort(slots.reshape(num_gpus, -1), axis=1).tolist()


def test_a_fresh_map_lists_the_experts_of_a_gpu_in_rising_order():
    """So that the map where every GPU holds everything reads 0, 1, 2, whatever the loads."""
    fresh = made(range(NUM_EXPERTS), "refined", "global")

    assert held(fresh) == np.array(fresh.physical_to_logical).reshape(SIZES.num_gpus, -1).tolist()
    assert balance(((3, 1, 2),), 6, 2).physical_to_logical == ((0, 1, 2, 0, 1, 2),)

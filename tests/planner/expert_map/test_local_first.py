"""The split rules that look at places: what GPUs carry under them, and maps that are even under them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.expert_map import Sizes, balance, consecutive_domains, count_uncovered
from planner.expert_map.local_first import carried_local_first, carried_under, settle
from planner.expert_map.weigh import scale
from planner.facts.drawn import draw_loads

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
    per_node, carried = len(gpus) // num_nodes, np.zeros(len(gpus))
    for source in range(len(gpus)):
        for expert, load in enumerate(loads):
            holders = [gpu for gpu, held in enumerate(gpus) for each in held if each == expert]
            chosen = targets(split, source, holders, per_node)
            for gpu in chosen:
                carried[gpu] += load / len(gpus) / len(chosen)
    return carried


@pytest.mark.parametrize("split", RULES)
@settings(max_examples=200, deadline=None)
@given(problem=problems())
def test_what_gpus_carry_is_what_sources_send(split, problem):
    """The formula is the sum over sources; and the map says what its fullest GPU carries over the mean."""
    loads, num_slots, num_gpus, num_nodes = problem
    expert_map = balance((loads,), num_slots, num_gpus, num_nodes=num_nodes, split=split)
    gpus = np.array(expert_map.physical_to_logical[0]).reshape(num_gpus, -1)
    slowly = carried_slowly(split, loads, gpus.tolist(), num_nodes)
    mean = sum(loads) / num_gpus or 1.0

    assert carried_under(split, np.array(loads, dtype=float), gpus, num_nodes) == pytest.approx(slowly)
    assert expert_map.split == split
    assert expert_map.max_over_mean[0] == pytest.approx(slowly.max() / mean if sum(loads) else 1.0, abs=2e-6)
    assert expert_map.bound[0] <= expert_map.max_over_mean[0] + 1e-6


@pytest.mark.parametrize("split", RULES)
@settings(max_examples=200, deadline=None)
@given(problem=problems())
def test_a_map_for_local_tokens_is_no_less_even_under_their_rule(split, problem):
    """Than the map for equal shares; with the same replicas, and none twice on a GPU."""
    loads, num_slots, num_gpus, num_nodes = problem
    equal = balance((loads,), num_slots, num_gpus, num_nodes=num_nodes)
    local = balance((loads,), num_slots, num_gpus, num_nodes=num_nodes, split=split)
    gpus = [np.array(each.physical_to_logical[0]).reshape(num_gpus, -1) for each in (equal, local)]
    before, after = (carried_under(split, np.array(loads, dtype=float), each, num_nodes).max() for each in gpus)

    assert after <= before * (1 + 1e-6) + 1e-6
    assert sorted(equal.physical_to_logical[0]) == sorted(local.physical_to_logical[0])
    assert all(len(set(held)) == len(held) for held in gpus[1].tolist())


def settled_slowly(split, loads, gpus, num_nodes, within_nodes):
    """Swap by swap: of all swaps with the fullest GPU the one after which least is on the GPUs of the two experts."""
    per_node = len(gpus) // num_nodes
    while True:
        carried = whole_numbers_carried(split, loads, gpus, num_nodes)
        hot = int(carried.argmax())
        best, least = None, carried[hot]
        for gpu, slot, other in itertools.product(range(len(gpus)), range(len(gpus[0])), range(len(gpus[0]))):
            leaving, coming = gpus[hot][slot], gpus[gpu][other]
            if carried[gpu] >= carried[hot] or leaving in gpus[gpu] or coming in gpus[hot]:
                continue
            if within_nodes and gpu // per_node != hot // per_node:
                continue
            swapped = [list(held) for held in gpus]
            swapped[hot][slot], swapped[gpu][other] = coming, leaving
            after = whole_numbers_carried(split, loads, swapped, num_nodes)
            most = max(after[each] for each, held in enumerate(swapped) if leaving in held or coming in held)
            if most < least:
                best, least = swapped, most
        if best is None:
            return gpus
        gpus = best


def whole_numbers_carried(split, loads, gpus, num_nodes):
    """Return the load of each GPU, each replica's part rounded down."""
    per_node, carried = len(gpus) // num_nodes, np.zeros(len(gpus))
    for expert, load in enumerate(loads):
        holders = [gpu for gpu, held in enumerate(gpus) if expert in held]
        near = [sum(gpu // per_node == node for gpu in holders) for node in range(num_nodes)]
        for gpu in holders:
            num_near = near[gpu // per_node]
            share = (1 / num_near + near.count(0) / sum(near)) / num_nodes
            if split == "first_on_node" and num_near == len(holders):
                share = 1 / len(holders)
            elif split == "first_on_node":
                is_first = not any(other < gpu and other // per_node == gpu // per_node for other in holders)
                parts = 1 + near.count(0) * per_node / len(holders) + (per_node - num_near if is_first else 0)
                share = parts / len(gpus)
            carried[gpu] += np.floor(load * share)
    return carried


@pytest.mark.parametrize("split", RULES)
@settings(max_examples=40, deadline=None)
@given(problem=problems(), within_nodes=st.booleans())
def test_the_search_makes_the_swaps_that_counting_everything_anew_finds(split, problem, within_nodes):
    """Slowly, with all that GPUs carry counted again for every swap that is looked at: the same map."""
    loads, num_slots, num_gpus, num_nodes = problem
    sizes, equal = Sizes(num_slots, num_gpus, num_nodes), balance((loads,), num_slots, num_gpus, num_nodes=num_nodes)
    gpus = np.array(equal.physical_to_logical[0]).reshape(num_gpus, -1).tolist()
    ours = settle(equal, (loads,), sizes, split, within_nodes=within_nodes)
    if len(loads) > len(gpus[0]):  # else every GPU holds everything
        gpus = settled_slowly(split, scale((loads,))[0], gpus, num_nodes, within_nodes)

    assert np.reshape(ours.physical_to_logical, (num_gpus, -1)).tolist() == gpus


def test_decode_with_a_third_slot_is_mended():
    """EP144 on 18 nodes, three replicas here and two there: the map for equal shares is uneven under the rule."""
    loads = draw_loads(1.01, 0, num_layers=4, num_experts=256)
    local = balance(loads, 432, 144, num_nodes=18, split="local_first")
    equal = np.array(balance(loads, 432, 144, num_nodes=18).physical_to_logical).reshape(4, 144, 3)
    under_rule = [carried_local_first(np.array(row), slots, 18) for row, slots in zip(loads, equal, strict=True)]
    ratios = [carried.max() / carried.mean() for carried in under_rule]

    assert np.mean(local.max_over_mean) < 1.02 < np.mean(ratios)


def test_twins_of_a_node_are_parted_where_the_first_takes_all():
    """EP144 on 18 nodes, three slots a GPU: under `first_on_node` the map for equal shares is uneven, and is mended."""
    loads = draw_loads(1.01, 0, num_layers=2, num_experts=256)
    mended = balance(loads, 432, 144, num_nodes=18, split="first_on_node")
    equal = np.array(balance(loads, 432, 144, num_nodes=18).physical_to_logical).reshape(2, 144, 3)
    under_rule = [carried_under("first_on_node", np.array(row), s, 18) for row, s in zip(loads, equal, strict=True)]
    ratios = [carried.max() / carried.mean() for carried in under_rule]

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

"""From one map to the next: few slots change, no layer is worse than EPLB's, and no expert is ever without a slot."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.expert_map import Sizes, balance, native
from planner.expert_map.hierarchy import compute_eplb_peaks
from planner.expert_map.native import Search
from planner.expert_map.renew import align_slots, match_gpus, remove_repeats
from planner.expert_map.weigh import scale
from planner.facts.drawn import draw_loads
from tests.planner.expert_map.eplb_reference import rebalance_experts
from tests.planner.expert_map.test_expert_map import problems


def gpus_of(slots, per_gpu):
    """Return the experts that each GPU holds, as counts."""
    return [Counter(slots[first : first + per_gpu]) for first in range(0, len(slots), per_gpu)]


def moved(before, after, per_gpu):
    """Slots whose GPU did not hold their expert before."""
    pairs = zip(gpus_of(before, per_gpu), gpus_of(after, per_gpu), strict=True)
    return sum((new - old).total() for old, new in pairs)


@given(problems())
def test_nothing_moves_when_loads_are_unchanged(problem):
    """The map in service was no worse than EPLB's, and still is not."""
    loads, num_slots, num_gpus = problem
    before = balance((tuple(loads),), num_slots, num_gpus).physical_to_logical
    after = balance((tuple(loads),), num_slots, num_gpus, previous=before)

    assert (after.moved_slots, after.physical_to_logical) == (0, before)


@given(problems(), st.randoms(use_true_random=False))
def test_the_new_map_is_a_map_and_its_moves_are_counted(problem, random):
    """For any other loads: every expert, none twice on a GPU, and what is kept stays in its slot."""
    loads, num_slots, num_gpus = problem
    (before,) = balance((tuple(loads),), num_slots, num_gpus).physical_to_logical
    random.shuffle(loads)
    renewed = balance((tuple(loads),), num_slots, num_gpus, previous=(before,))
    (after,) = renewed.physical_to_logical
    per_gpu = num_slots // num_gpus

    assert set(after) == set(range(len(loads)))
    assert all(max(gpu.values()) == 1 for gpu in gpus_of(after, per_gpu))
    assert renewed.moved_slots == moved(before, after, per_gpu)
    assert renewed.moved_slots == sum(new != old for new, old in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("num_slots", "num_gpus", "most"), [(288, 72, 0.6), (432, 144, 0.5), (288, 144, 0.15), (288, 32, 0.3)]
)
def test_drifted_loads_move_few_slots(num_slots, num_gpus, most):
    """Every eighth expert as hot as another was: EPLB's balance, with at most that share of slots changed."""
    old = np.array(draw_loads(1.01, 1, num_layers=4, num_experts=256))
    new = old.copy()
    new[:, ::8] = old[:, ::8][:, ::-1]
    before = balance(old.tolist(), num_slots, num_gpus).physical_to_logical
    after = balance(new.tolist(), num_slots, num_gpus, previous=before)
    eplb = native.pack(scale(new), Sizes(num_slots, num_gpus), as_eplb=True)[1] / (scale(new).sum(axis=1) / num_gpus)

    assert (np.array(after.max_over_mean) <= eplb + 1e-6).all()
    assert after.moved_slots <= most * 4 * num_slots


def test_two_gpus_exchange_one_expert_each():
    """The first carries 12 where 9 are enough; the 8 goes with the 1, and the 4 with the 5."""
    found = reseated(np.array([8.0, 4.0, 5.0, 1.0, 4.0, 3.0]), np.array([[0, 1], [2, 3], [4, 5]]), 9.0)

    assert found.tolist() in ([[0, 3], [2, 1], [4, 5]], [[2, 1], [0, 3], [4, 5]])


def reseated(loads, slots, enough):
    """The map after a search without kicks from the map in service, where seats are tried beside the steps."""
    prices = np.array(
        [[[expert not in held for held in slots.tolist()] for expert in range(len(loads))]], dtype=np.uint8
    )
    search = Search(np.array([enough]), prices_LEG=np.array(prices, dtype=np.uint8), may_reseat=True)
    return native.improve(loads[None], slots[None], search)[0][0]


@pytest.mark.slow
@given(problems(), st.randoms(use_true_random=False))
def test_seats_change_no_more_slots_than_the_steps_alone(problem, random):
    """No GPU then carries more than is enough, and every expert has a slot, once on a GPU."""
    loads, num_slots, num_gpus = problem
    (before,) = balance((tuple(loads),), num_slots, num_gpus).physical_to_logical
    random.shuffle(loads)
    scaled = scale([loads])
    enough = native.pack(scaled, Sizes(num_slots, num_gpus), as_eplb=True)[1][0] * (1 + 1e-9)
    found = reseated(scaled[0], np.array(before).reshape(num_gpus, -1), enough)
    fullest = native.gpu_loads(scaled, found[None]).max()

    assert set(found.ravel().tolist()) == set(range(len(loads)))
    assert all(len(set(gpu)) == len(gpu) for gpu in found.tolist())
    assert fullest <= max(enough, native.gpu_loads(scaled, np.array(before).reshape(1, num_gpus, -1)).max())


def test_a_map_that_is_good_enough_is_kept():
    """With `keep_within` a layer less even than a new one by no more than that share stays."""
    loads = draw_loads(1.01, 1, num_layers=3, num_experts=64)
    others = draw_loads(1.01, 2, num_layers=3, num_experts=64)
    before = balance(loads, 72, 8).physical_to_logical

    assert balance(others, 72, 8, previous=before).moved_slots > 0
    assert balance(others, 72, 8, previous=before, keep_within=10.0).physical_to_logical == before


@pytest.mark.parametrize(("num_groups", "num_nodes"), [(8, 4), (8, 2), (1, 1)])
def test_eplbs_level_is_computed_as_eplb_reaches_it(num_groups, num_nodes):
    """The fast figure against the slow reference, global and hierarchical."""
    loads = np.array(draw_loads(1.01, 3, num_layers=6, num_experts=64))
    slots = rebalance_experts(loads, 80, num_groups, num_nodes, 16)
    counts = np.stack([np.bincount(row, minlength=64) for row in slots])
    gpu_loads = np.take_along_axis(loads / counts, slots, axis=1).reshape(6, 16, 5).sum(axis=2).max(axis=1)

    sizes = Sizes(80, 16, num_nodes, num_groups)
    assert compute_eplb_peaks(scale(loads), sizes, within_nodes=num_groups > 1) == pytest.approx(
        gpu_loads * scale(loads).sum(axis=1) / loads.sum(axis=1), rel=1e-5
    )


def test_a_fresh_map_is_numbered_like_the_old_one():
    """The same GPUs in another order are the old map again, nodes and GPUs alike."""
    old = np.array([[0, 1], [2, 3], [4, 5], [6, 7]])

    assert match_gpus(old[[3, 2, 1, 0]], old, num_nodes=2).tolist() == old.tolist()


def test_what_is_kept_stays_in_its_slot():
    """Only the expert that comes takes the freed slot."""
    assert align_slots(np.array([[[3, 0, 1]]]), np.array([[[0, 1, 2]]])).tolist() == [[[0, 1, 3]]]


def test_an_expert_twice_on_a_gpu_makes_room():
    """EPLB's maps have such; the hottest expert that the GPU lacks comes in."""
    parted = remove_repeats(np.array([[9.0, 5.0, 7.0]]), np.array([[[0, 0], [1, 2]]]))

    assert parted.tolist() == [[[0, 2], [1, 2]]]


def test_gpus_that_hold_everything_keep_their_maps():
    """More slots a GPU than experts: repeats cannot be parted, and need not be."""
    loads = ((4, 3, 2, 1), (1, 2, 3, 4))
    before = balance(loads, 12, 2).physical_to_logical
    after = balance(tuple(reversed(loads)), 12, 2, previous=before)

    assert (after.moved_slots, after.physical_to_logical) == (0, before)


def test_gpus_with_room_for_all_experts_get_all():
    """A previous map with an expert on only one GPU is uneven and is replaced."""
    after = balance(((4, 3, 2, 1),), 12, 2, previous=((0, 0, 0, 1, 2, 2, 1, 1, 2, 2, 3, 3),))

    assert after.max_over_mean == (1.0,)
    assert after.moved_slots > 0


def test_a_map_with_split_groups_is_replaced_if_groups_stay_whole():
    """It is more even than whole groups allow; the answer has whole groups and a true bound."""
    loads = draw_loads(1.01, 0, 2, 64)
    before = balance(loads, 72, 8, policy="global").physical_to_logical
    after = balance(loads, 72, 8, num_nodes=4, num_groups=8, policy="hierarchical", previous=before)

    for layer in np.array(after.physical_to_logical).reshape(2, 4, -1):
        assert all(len(set(node // 8)) == 2 for node in layer)
    assert all(reached >= bound - 1e-6 for reached, bound in zip(after.max_over_mean, after.bound, strict=True))


@pytest.mark.parametrize("split", ["equal", "local_first"])
def test_groups_stay_whole_after_a_map_with_an_expert_twice_on_a_gpu_or_with_split_groups(split):
    """As EPLB's may be, and as ours are that keep no groups; whatever is kept, nothing is below the bound."""
    sizes = {"num_nodes": 4, "num_groups": 8, "policy": "hierarchical"}
    old, new = (draw_loads(1.01, seed, 2, 64) for seed in (5, 0))
    repeated = np.array(balance(old, 72, 8, **sizes).physical_to_logical).reshape(2, 8, 9)
    for layer in repeated:
        for gpu in layer:
            spare = np.flatnonzero(np.bincount(layer.ravel(), minlength=64)[gpu] > 1)
            gpu[spare[:1]] = gpu[spare[:1] - 1]
    split_up = balance(new, 72, 8, policy="global").physical_to_logical
    for previous in (repeated.reshape(2, 72).tolist(), split_up):
        for loads in (old, new):
            after = balance(loads, 72, 8, **sizes, split=split, previous=previous, keep_within=0.03)
            groups = np.array(after.physical_to_logical).reshape(8, -1) // 8

            assert all(len(set(node)) == 2 for node in groups.tolist())
            assert (np.array(after.max_over_mean) >= np.array(after.bound) - 1e-6).all()

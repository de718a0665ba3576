"""The moves between two maps of a layer are as few as possible, and no step between lacks an expert."""

from collections import Counter
from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from runtime.expert_parallel.epochs.moves import Move, plan_rounds


@st.composite
def changes(draw, max_ranks=4, max_slots=4):
    """Draw two maps of a layer, the node of each rank, and a number of experts in staging."""
    num_ranks, slots_per_rank = draw(st.integers(1, max_ranks)), draw(st.integers(1, max_slots))
    num_slots = num_ranks * slots_per_rank
    num_experts = draw(st.integers(1, num_slots))
    redundant = st.lists(
        st.integers(0, num_experts - 1), min_size=num_slots - num_experts, max_size=num_slots - num_experts
    )
    current, wanted = (draw(st.permutations([*range(num_experts), *draw(redundant)])) for _ in range(2))
    nodes = sorted(draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks)))
    return current, wanted, nodes, draw(st.integers(1, 3))


def holdings(layer, num_ranks):
    """What each rank holds."""
    size = len(layer) // num_ranks
    return [Counter(layer[first : first + size]) for first in range(0, len(layer), size)]


def fewest_changed_slots(current, wanted, num_ranks):
    """The least number of slots that differ between `current` and any order of `wanted` within its ranks."""
    size = len(current) // num_ranks
    orders = [permutations(wanted[first : first + size]) for first in range(0, len(wanted), size)]
    return min(
        sum(old != new for old, new in zip(current, [each for part in order for each in part], strict=True))
        for order in product(*orders)
    )


@given(changes())
def test_every_step_of_the_way_holds_every_expert(drawn):
    """After each round the layer holds every expert, and at the end each rank holds what the map gives it."""
    current, wanted, nodes, _ = drawn
    layer = list(current)
    for each in plan_rounds(*drawn):
        for move in each.moves:
            assert layer[move.source] == move.expert != layer[move.slot]
        for move in each.moves:
            layer[move.slot] = move.expert

        assert layer == each.physical_to_logical
        assert set(layer) == set(current)

    assert holdings(layer, len(nodes)) == holdings(wanted, len(nodes))


@given(changes())
def test_no_rank_receives_more_than_its_staging_holds(drawn):
    """In no round does a rank have more moves than experts of staging, even where that is one."""
    current, _, nodes, staging = drawn
    slots_per_rank = len(current) // len(nodes)
    received = [Counter(move.slot // slots_per_rank for move in each.moves) for each in plan_rounds(*drawn)]

    assert all(max(ranks.values()) <= staging for ranks in received)


@given(changes(max_ranks=3, max_slots=3))
def test_moves_are_the_fewest(drawn):
    """No way to the map changes fewer slots, as all orders of its slots show."""
    current, wanted, nodes, _ = drawn
    num_moves = sum(len(each.moves) for each in plan_rounds(*drawn))

    assert num_moves == fewest_changed_slots(current, wanted, len(nodes))


def test_an_expert_comes_from_the_nearest_rank():
    """An expert comes from its own rank, else its node, else its rail, else anywhere, and equal sources take turns."""
    nodes = [0, 0, 1, 1, 2, 2]
    (moved,) = plan_rounds([0, 1, 2, 3, 4, 0], [0, 0, 2, 3, 4, 1], nodes, 1)

    assert moved.moves == (Move(1, 0, 0), Move(5, 1, 1))

    (moved,) = plan_rounds([9, 0, 1, 0, 9, 9], [0, 0, 1, 0, 9, 0], nodes, 1)

    assert moved.moves == (Move(0, 0, 1), Move(5, 0, 3))

    (moved,) = plan_rounds([1, 2, 0, 0, 1, 1], [1, 2, 0, 0, 0, 0], nodes, 1)

    assert moved.moves == (Move(4, 0, 2), Move(5, 0, 3))


def test_without_a_change_nothing_moves():
    """Maps that give each rank the same experts need no round, whatever their order in its slots."""
    assert list(plan_rounds([0, 1, 2, 3], [1, 0, 3, 2], [0, 0], 1)) == []

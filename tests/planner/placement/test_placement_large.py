"""The published system of 278 nodes on clusters of several shapes: what is reached, and what is proven of it."""

import pytest

from planner.placement.bound import min_extra_leaves, min_racks, racks_by_whole_units
from planner.placement.greedy import place_greedily
from planner.placement.quality import measure
from tests.benchmarks.placement_shapes import shapes, task_on

KINDS = ((4, 29), (18, 9))
NONE_LARGER = (0, 0)


@pytest.fixture(scope="module")
def reached():
    """The counts of each shape."""
    results = {}
    for name, shape in shapes().items():
        task = task_on(shape)
        results[name] = measure(task, place_greedily(task))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("shape", shapes())
def test_every_count_is_within_five_percent_of_its_bound(reached, shape):
    """The bound holds for all placements as good in the counts before, and so for the best there is."""
    for objective in reached[shape]:
        assert objective.bound <= objective.value <= 1.05 * objective.bound, objective


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ("racks of 4", [515, 1]),
        ("power domains of 16", [515, 1, 1]),
        ("leaves of 32, 42 to spare", [38, 544, 1, 1]),
        ("leaves of 16", [47, 515, 1]),
    ],
)
def test_these_are_proven_to_be_the_best(reached, shape, counts):
    """All counts are at their bounds."""
    assert [each.value for each in reached[shape]] == [each.bound for each in reached[shape]] == counts


def test_whole_units_leave_nodes_over():
    """Under nine leaves of 32 nodes stand 36 of the 38 units whole; adding up nodes would have it that all do."""
    assert min_extra_leaves((32,) * 9, KINDS, NONE_LARGER) == 2
    assert min_extra_leaves((32,) * 10, KINDS, NONE_LARGER) == 0


def test_units_larger_than_a_leaf_need_room_as_well():
    """Beside two of 18 nodes no two leaves have 40 left; without the large one both have a leaf."""
    assert min_extra_leaves((32, 32, 32), ((18, 2), (1, 0)), NONE_LARGER) == 0
    assert min_extra_leaves((32, 32, 16), ((18, 2), (1, 0)), (40, 2)) == 1


def test_two_units_of_18_nodes_under_two_leaves_take_ten_racks():
    """Each leaves two nodes of a rack over; only if one of them may be split do they share a rack."""
    racks = racks_by_whole_units(((4,) * 8,) * 10, KINDS)

    assert min_racks(racks, 0, 2, num_split=0) == 10
    assert min_racks(racks, 0, 2, num_split=1) == 5
    assert min_racks(racks, 8, 2, num_split=0) == 18


@pytest.mark.parametrize(
    ("leaves", "kinds"), [((32,) * 313, ((4, 454), (18, 454))), ((10_000,), ((1, 3000), (2, 3000)))]
)
def test_tables_that_would_be_too_large_are_not_made(leaves, kinds):
    """The plain bounds have to do for 10,000 nodes, under many leaves or one."""
    (_, num_small), (_, num_big) = kinds
    table = racks_by_whole_units(tuple((size,) for size in leaves), kinds)

    assert min_extra_leaves(leaves, kinds, NONE_LARGER) == 0
    assert min_racks(table, num_small, num_big, num_split=0) == 0

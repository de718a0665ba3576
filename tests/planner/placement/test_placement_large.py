"""The published system of 278 nodes on clusters of several shapes, beside the least that was ever proven."""

import pytest

from planner.placement.greedy import place_greedily
from planner.placement.quality import measure
from tests.benchmarks.placement_shapes import shapes, task_on

MOST_ABOVE = 1.03

# Leaves, if there are any, then racks and losses. HiGHS or a sum of nodes proves them (tests/benchmarks/placement.py).
LEAST = {
    "racks of 4": [515, 1],
    "leaves of 32, no node to spare": [41, 515, 1],
    "leaves of 32, 10 to spare": [40, 515, 1],
    "leaves of 32, 42 to spare": [38, 544, 1],
    "leaves of 16": [47, 515, 1],
    "uneven racks, cordoned nodes": [38, 489, 1],
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", LEAST)
def test_every_count_is_near_the_least(shape):
    """No count is below what is proven, and none more than a few percent above."""
    task = task_on(shapes()[shape])
    found = [each.value for each in measure(task, place_greedily(task))]

    assert all(least <= count <= MOST_ABOVE * least for count, least in zip(found, LEAST[shape], strict=True))

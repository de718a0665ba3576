"""Where `status` says that a unit's places stand, told from its pods."""

import pytest

from runtime.worker.places import give_places
from stacks.live.places import StandIn, lost_nodes, stand_ins

PLANNED, SPARES = ["a", "b", "c"], ["x", "y"]


def pods_on(*nodes):
    """Pods of a unit; None is of one that has no node yet."""
    return [{"spec": {} if node is None else {"nodeName": node}} for node in nodes]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (("a", "b", "c"), []),
        (("a", "x", "c"), [("x", "b")]),
        (("y", "b", "x"), [("x", "a"), ("y", "c")]),
        (("a", "x", None), []),
        ((), []),
    ],
)
def test_a_spare_stands_in_for_the_missing_node(nodes, expected):
    """The first for the first, as the leader gives places; not before every pod has a node."""
    found = stand_ins(PLANNED, SPARES, pods_on(*nodes))

    assert found == tuple(StandIn(*each) for each in expected)
    if found:
        given = give_places(PLANNED, SPARES, nodes, {})
        assert {each.node: PLANNED.index(each.for_node) for each in found}.items() <= given.items()


@pytest.mark.parametrize(
    ("spares", "nodes", "down", "lost"),
    [
        (SPARES, ("a", "b", "c"), {"b"}, ["b"]),
        (SPARES, ("a", "x", "c"), {"b"}, []),
        (SPARES, ("a", "x", "c"), {"b", "x"}, ["x"]),
        ([], ("a", None, "c"), {"b"}, ["b"]),
        (SPARES, ("a", None, "c"), {"b"}, []),
        (SPARES, ("a", "b", "c"), {"y"}, []),
    ],
)
def test_a_unit_loses_the_nodes_that_it_is_on(spares, nodes, down, lost):
    """A planned node that is down is no loss any more when a spare has its place, or may get it."""
    assert lost_nodes(PLANNED, spares, pods_on(*nodes), down) == lost

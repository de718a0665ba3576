"""Whom of those that have not said who they are the registry ends, when they are too many."""

import pytest

from runtime.gateway.edge.strangers import MAX_STRANGERS, Strangers


@pytest.fixture
def crowd():
    """(strangers, those that were ended), when one came from 10.0.0.2, and then as many as may be from 10.0.0.9."""
    strangers, ended = Strangers(), []

    def add(name, host):
        assert strangers.make_room()
        strangers.add(name, host, lambda: ended.append(name))

    add("rank", "10.0.0.2")
    for number in range(3 * MAX_STRANGERS):
        add(number, "10.0.0.9")
    return strangers, ended


def test_a_crowd_ends_its_own_oldest(crowd):
    """One that came before all of it, from another address, stays."""
    strangers, ended = crowd

    assert ended == list(range(2 * MAX_STRANGERS + 1))
    assert strangers.num_free == 0


def test_whoever_is_known_makes_room_for_another(crowd):
    """Nobody is ended then."""
    strangers, ended = crowd
    before = len(ended)
    strangers.forget("rank")

    assert strangers.num_free == 1
    assert strangers.make_room()
    assert len(ended) == before

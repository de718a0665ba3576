"""When there are too many connections without Hello, the registry closes the right ones."""

import pytest

from runtime.gateway.edge.strangers import MAX_STRANGERS, Strangers


@pytest.fixture
def crowd():
    """Return (strangers, closed ones) after one from 10.0.0.2 and as many as allowed from 10.0.0.9."""
    strangers, ended = Strangers(), []

    def add(name, host):
        assert strangers.make_room()
        strangers.add(name, host, lambda: ended.append(name))

    add("rank", "10.0.0.2")
    for number in range(3 * MAX_STRANGERS):
        add(number, "10.0.0.9")
    return strangers, ended


def test_a_crowd_ends_its_own_oldest(crowd):
    """A crowd from one address closes its own oldest, and not one from elsewhere."""
    strangers, ended = crowd

    assert ended == list(range(2 * MAX_STRANGERS + 1))
    assert strangers.num_free == 0


def test_whoever_is_known_makes_room_for_another(crowd):
    """When a stranger has said Hello, its place is free and nobody is closed."""
    strangers, ended = crowd
    before = len(ended)
    strangers.forget("rank")

    assert strangers.num_free == 1
    assert strangers.make_room()
    assert len(ended) == before

"""A lost peer ends this rank as an echo, and a bug of ours as a bug."""

import pytest
import torch

from runtime.errors import PeerLost
from tests.runtime.joined_groups import joined_groups


@pytest.fixture
def pair(free_port):
    """Return two joined ranks of a unit, in one process."""
    return joined_groups(2, free_port())


@pytest.mark.parametrize(
    "collective", [lambda group: group.any(True), lambda group: group.all_to_all(torch.zeros(2, 3), [1, 1], [1, 1])]
)
def test_a_peer_that_is_gone_is_lost(pair, collective):
    """Any collective reports a lost peer, in one line."""
    del pair[1]._backend

    with pytest.raises(PeerLost, match=r"^a rank of this unit is gone \(.+\)$"):
        collective(pair[0])


def test_a_peer_that_is_gone_ends_a_trade(pair):
    """What travels beside the steps reports a lost peer too."""
    del pair[1]._beside

    with pytest.raises(PeerLost, match=r"^a rank of this unit is gone \(.+\)$"):
        pair[0].trade([], [(1, torch.empty(3))])


def test_a_wrong_call_is_no_lost_peer(pair):
    """Sizes that do not fit the rows are a bug of ours, not a lost peer."""
    with pytest.raises(RuntimeError, match="Split sizes") as error:
        pair[0].all_to_all(torch.zeros(2, 3), [5, 1], [1, 1])

    assert not isinstance(error.value, PeerLost)


def test_ranks_that_disagree_are_no_lost_peers(pair):
    """If a rank sends itself another number than it takes, gloo's error is no lost peer."""
    with pytest.raises(RuntimeError, match="enforce fail") as error:
        pair[0].all_to_all(torch.zeros(3, 3), [2, 1], [1, 2])

    assert not isinstance(error.value, PeerLost)

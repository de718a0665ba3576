"""The roster forgets lost ranks in the right order."""

from types import SimpleNamespace

import pytest

from runtime.gateway.ranks import roster
from runtime.gateway.ranks.roster import Roster


class Known:
    """A rank without a connection."""

    def __init__(self, unit="prefill-0", rank=0):
        self.hello = SimpleNamespace(unit=unit, rank=rank)


@pytest.fixture
def few_lost(monkeypatch):
    """Make a roster keep only two lost ranks."""
    monkeypatch.setattr(roster, "MAX_LOST", 2)
    return Roster()


def test_lost_ranks_have_a_bound(few_lost):
    """The rank that was lost first is forgotten first, with its unit if no other rank is left; connected ones stay."""
    connected, *lost = [Known("mill", 0), Known("mill", 1), Known("tide", 0), *(Known("mill", n) for n in (2, 3))]
    for rank in (connected, *lost):
        few_lost.add(rank)
    for rank in lost:
        few_lost.mark_lost(rank)

    assert list(few_lost.group_by_unit()) == [("mill", [connected, *lost[-2:]])]


def test_a_rank_that_comes_back_is_lost_no_more(few_lost):
    """A rank that comes back is not lost, and later news of its predecessor changes nothing."""
    first, second, others = Known(), Known(), [Known("tide", number) for number in range(3)]
    few_lost.add(first)
    few_lost.mark_lost(first)
    few_lost.add(second)
    few_lost.mark_lost(first)
    for rank in others:
        few_lost.add(rank)
        few_lost.mark_lost(rank)

    assert dict(few_lost.group_by_unit()) == {"prefill-0": [second], "tide": others[1:]}


def test_a_unit_is_dropped_as_a_whole(few_lost):
    """Dropping a unit frees the places of its lost ranks."""
    dropped, others = [Known("mill", number) for number in range(3)], [Known("tide", number) for number in range(2)]
    for rank in (*dropped, *others):
        few_lost.add(rank)
    for rank in dropped[:2]:
        few_lost.mark_lost(rank)
    few_lost.drop_unit("mill")
    for rank in others:
        few_lost.mark_lost(rank)

    assert dict(few_lost.group_by_unit()) == {"tide": others}

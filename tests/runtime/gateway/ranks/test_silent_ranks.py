"""Ranks whose connection stands and who say nothing: processes that hang or are stopped, and steps that stand still."""

from types import SimpleNamespace

import pytest

from runtime.gateway.ranks.prefix_index import PrefixIndex
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize
from runtime.gateway.ranks.silence import ASK_LOOKS, GIVE_UP_LOOKS, LOOK_S, check_ranks
from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import Failed, Hello, Ping, Pong, State

HELLO = Hello("silent", "mixed", 0, 1, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
STALL_S = 10 * LOOK_S
SIZE = RequestSize(5, 5)


class Peer:
    """A rank as the gateway sees it, with a request; `heard` is what was written to it, `failed` what became of it."""

    def __init__(self, state="ready"):
        self.heard, self.failed, self.is_cut = [], [], False
        transport = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=self._cut)
        self.rank = Rank(
            HELLO,
            SimpleNamespace(write=self.heard.append, transport=transport),
            RankLimits(4, 4096, 0),
            PrefixIndex(64),
        )
        self.rank.handle(State(state))
        self.rank.subscribe("a", SIZE, lambda _, message: self.failed.append(message))

    def look(self, times, says=None):
        """Look `times` at the rank, which says something before each; return why it was given up."""
        reasons = []
        for _ in range(times):
            if says is not None:
                self.rank.handle(says)
            reasons += check_ranks([self.rank], STALL_S)
        return reasons

    def _cut(self):
        self.is_cut = True


def test_a_rank_that_says_nothing_is_asked_once():
    """Not at its first silence: a rank with long steps says its state now and then."""
    peer = Peer()

    assert peer.look(ASK_LOOKS - 1) == [] == peer.heard
    assert peer.look(2) == []
    assert peer.heard == [encode_frame(Ping())]


def test_a_rank_that_does_not_answer_is_given_up_and_its_requests_go_on_elsewhere():
    """Its connection is cut, so that a process that goes on calls again."""
    peer = Peer()
    reasons = peer.look(GIVE_UP_LOOKS + 5)
    reason = "rank 0 of unit silent has said nothing for 4 s, and did not answer when it was asked"

    assert reasons == [reason]
    assert peer.failed == [Failed("a", reason, may_retry=True)]
    assert (peer.rank.state, peer.is_cut) == ("lost", True)


def test_a_rank_whose_steps_stand_still_is_given_up_though_it_answers():
    """After the launch file's time, for a step may be long; a word of the loop begins the count anew."""
    peer = Peer()

    assert peer.look(9, says=Pong()) == []
    peer.rank.handle(State("ready"))
    assert peer.look(9, says=Pong()) == []
    assert peer.look(1, says=Pong()) == ["the steps of rank 0 of unit silent have stood still for 5 s"]


@pytest.mark.parametrize("state", ["loading", "joining"])
def test_a_rank_that_does_not_serve_yet_may_be_silent(state):
    """Its weights and its peers take as long as they do."""
    peer = Peer(state)

    assert peer.look(100) == [] == peer.heard

"""A rank that is connected but hangs, is stopped, or makes no steps is given up."""

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
    """A rank with a request as the gateway sees it. `heard` is what it got, `failed` what became of the request."""

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
        """Look `times` at the rank, which sends `says` before each. Return why it was given up."""
        reasons = []
        for _ in range(times):
            if says is not None:
                self.rank.handle(says)
            reasons += check_ranks([self.rank], STALL_S)
        return reasons

    def _cut(self):
        self.is_cut = True


def test_a_rank_that_says_nothing_is_asked_once():
    """A silent rank is asked once, and not at its first silence."""
    peer = Peer()

    assert peer.look(ASK_LOOKS - 1) == [] == peer.heard
    assert peer.look(2) == []
    assert peer.heard == [encode_frame(Ping())]


def test_a_rank_that_does_not_answer_is_given_up_and_its_requests_go_on_elsewhere():
    """A rank that does not answer is disconnected, and its requests go on elsewhere."""
    peer = Peer()
    reasons = peer.look(GIVE_UP_LOOKS + 5)
    reason = "rank 0 of unit silent has said nothing for 4 s, and did not answer when it was asked"

    assert reasons == [reason]
    assert peer.failed == [Failed("a", reason, may_retry=True)]
    assert (peer.rank.state, peer.is_cut) == ("lost", True)


def test_a_rank_whose_steps_stand_still_is_given_up_though_it_answers():
    """A rank whose steps stand still beyond the launch file's time is given up, although it answers."""
    peer = Peer()

    assert peer.look(9, says=Pong()) == []
    peer.rank.handle(State("ready"))
    assert peer.look(9, says=Pong()) == []
    assert peer.look(1, says=Pong()) == ["the steps of rank 0 of unit silent have stood still for 5 s"]


@pytest.mark.parametrize("state", ["loading", "joining"])
def test_a_rank_that_does_not_serve_yet_may_be_silent(state):
    """A rank that does not serve yet may be silent."""
    peer = Peer(state)

    assert peer.look(100) == [] == peer.heard

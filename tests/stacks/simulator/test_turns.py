"""Mixed units that take turns, against their slow reference: a queue that takes all that waits at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks.simulator.flows.turns import Turns, next_pieces

LOADS = tuple(64.0 * 1e-4 ** (1 - each / 48) for each in range(49))
EVEN = Turns(1.0, LOADS, (0.15,) * len(LOADS))  # a step of prompts takes the same for 1 and for 64
TOKENS_S = 0.05


def played(arrivals, turn_s, seconds, seed=0):
    """Return the mean seconds that a piece is there, and the share of turns: whoever waits is taken at once."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / arrivals, int(arrivals * seconds)))
    free, place, there, busy = 0.0, 0, 0.0, 0.0
    while place < len(times):
        begin = max(free, times[place])
        last = np.searchsorted(times, begin, side="right")
        free = begin + turn_s
        there += (free - times[place:last]).sum()
        busy += turn_s
        place = last
    return there / len(times), busy / free


@pytest.mark.parametrize("arrivals", [0.5, 3.0, 8.0, 40.0])
def test_a_steady_unit_is_that_of_a_simulated_one(arrivals):
    """Hundreds of seconds with turns of 0.2 s: pieces are there as long, and turns take as much time, within 4 %."""
    turn = next_pieces(EVEN, 0.0, arrivals, TOKENS_S, 1e6)
    there, busy = played(arrivals, 0.2, 4000)

    assert turn.pieces / arrivals == pytest.approx(there, rel=0.04)
    assert turn.busy == pytest.approx(busy, rel=0.04)
    assert turn.seconds == pytest.approx(0.2)
    assert turn.mean_wait_s + turn.seconds == pytest.approx(turn.pieces / arrivals)


def test_a_backlog_is_worked_off_at_full_turns():
    """A thousand pieces of which a turn of 0.2 s takes 64: 320 are done in a second."""
    turn = next_pieces(EVEN, 1000.0, 0.0, TOKENS_S, 1.0)

    assert turn.pieces == pytest.approx(680)
    assert turn.load == pytest.approx(64)


@given(st.floats(0, 500), st.floats(0, 500), st.floats(0, 0.2), st.floats(0.1, 600))
def test_pieces_that_come_are_done_or_left(pieces, arrivals, token_s, seconds):
    """No time is too long: what is left is never below 0 nor above what was there and came, and shares are shares."""
    turn = next_pieces(EVEN, pieces, arrivals, token_s, seconds)
    came = pieces + seconds * arrivals

    assert 0 <= turn.pieces <= came + 1e-9
    assert came - turn.pieces == pytest.approx(seconds * turn.load / turn.seconds, rel=0.06, abs=1e-9)
    assert 0 <= turn.computing <= turn.busy * (1 + 1e-9)
    assert turn.busy <= 1

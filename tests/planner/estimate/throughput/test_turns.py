"""How a mixed unit divides its time, against a queue of single requests that come, are computed, and get tokens."""

from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.throughput.turns import steady_turns

TOKENS_S = 0.04


def prompt_seconds(load):
    """A step of prompts, which is a little longer with more of them."""
    return 0.12 + 0.005 * load


def token_seconds(share):
    """A step of tokens, which takes as long with few requests."""
    return TOKENS_S


def played(requests, output, steps=30_000):
    """Return the seconds between two steps of tokens, and how many requests got them on average.

    Whoever ends is followed by another, whose prompt comes after a time of its own.
    """
    rng = np.random.default_rng(0)
    now, waiting, spent = 0.0, 0, 0.0
    ends = sorted(rng.integers(1, output, requests).tolist())
    coming = []
    for step in range(steps):
        began = now
        while coming and coming[0] <= now:
            heappop(coming)
            waiting += 1
        if waiting:
            now += prompt_seconds(waiting)
            for _ in range(waiting):
                heappush(ends, step + output)
            waiting = 0
        now += TOKENS_S
        while ends and ends[0] <= step:
            heappop(ends)
            heappush(coming, now + rng.exponential(1.0))
        spent += (now - began) * len(ends)
    return now / steps, spent / now


@pytest.mark.parametrize(("requests", "output"), [(16, 400), (128, 400), (1000, 400)])
def test_requests_one_by_one_take_as_long(requests, output):
    """From few prompts a step to several: the time between two steps of tokens is within 4 %."""
    seconds, running = played(requests, output)
    turns = steady_turns(running / output, 1e3, prompt_seconds, token_seconds)

    assert turns.seconds_per_step == pytest.approx(seconds, rel=0.04)


@given(st.floats(1e-4, 50), st.floats(1.0, 2.0), st.floats(0.1, 40))
def test_more_requests_take_longer_and_bring_more(ended, factor, most):
    """Until a turn is full: then prompts hold requests up, and more of them bring nothing."""
    few, many = (steady_turns(each, most, prompt_seconds, token_seconds) for each in (ended, ended * factor))

    assert few.load <= many.load <= most
    assert few.seconds_per_step <= many.seconds_per_step * (1 + 1e-5)
    assert few.pieces_per_s <= many.pieces_per_s * (1 + 1e-5)
    if few.load < most:
        assert few.pieces_per_s == pytest.approx(ended / few.seconds_per_step, rel=1e-4)


def test_an_idle_unit_waits_for_nobody():
    """Where hardly any request ends, tokens come every step, and no prompt finds a turn under way."""
    turns = steady_turns(1e-6, 8.0, prompt_seconds, token_seconds)

    assert turns.seconds_per_step == pytest.approx(TOKENS_S, rel=1e-4)
    assert turns.mean_wait_s == pytest.approx(0.0, abs=1e-5)
    assert turns.wait_exceeded_by(0.01) == 0
    assert not turns.delays_more_than(0.01)

"""The two equations of the fluid day, against their slow references."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks.simulator.flows.queues import busy_share, next_requests, next_steps, steady_steps
from stacks.simulator.flows.service import TokenSide

NUMBERS = tuple(64 ** (each / 24) for each in range(25))
SIDE = TokenSide("decode", 8, NUMBERS, tuple(0.02 + 0.0005 * each for each in NUMBERS), 64.0, 128.0, 400_000.0)


@given(st.floats(0.001, 0.99))
def test_a_steady_queue_is_busy_as_its_load_says(load):
    """The inverse of the Pollaczek-Khinchine formula is its inverse."""
    assert busy_share(steady_steps(load)) == pytest.approx(load, rel=1e-6)


@given(st.floats(0, 1000), st.floats(0, 5), st.floats(0.1, 20), st.floats(0.1, 600))
def test_steps_that_come_are_done_or_left(steps, arrivals, rate, seconds):
    """Whatever the time step, the new queue is the old one with what came, less the work of its own busy share."""
    after = next_steps(steps, arrivals, rate, seconds)

    assert after >= 0
    assert after + seconds * rate * busy_share(after) == pytest.approx(steps + seconds * arrivals, rel=1e-6, abs=1e-6)


def test_the_steady_queue_is_that_of_a_simulated_one():
    """A million seeded arrivals at a server of constant time wait as long as the equation says, within 3 %."""
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1 / 0.8, 1_000_000)
    drift = np.concatenate(([0.0], np.cumsum(1 - gaps[1:])))
    waits = drift - np.minimum.accumulate(drift)
    steps = 0.0
    for _ in range(2000):
        steps = next_steps(steps, 0.8, 1.0, 1.0)

    assert (steps - 0.8) / 0.8 == pytest.approx(waits.mean(), rel=0.03)


@given(st.floats(0, 200), st.floats(0, 40), st.floats(1, 2000), st.floats(0.01, 60))
def test_requests_that_come_end_or_stay(requests, arrivals, output, seconds):
    """The new number, with those that end at its own pace, is the old one with what came; more never makes fewer."""
    after = next_requests(SIDE, requests, arrivals, output, seconds)
    batch = min(after, SIDE.max_requests)
    ended = seconds * batch / output / SIDE.seconds(batch)

    assert after >= 0
    assert after + ended == pytest.approx(requests + seconds * arrivals, rel=0.01, abs=1e-6)
    assert next_requests(SIDE, requests + 1, arrivals, output, seconds) >= after


def test_many_short_steps_come_to_where_a_plain_reference_does():
    """Explicit Euler in steps of a millisecond ends within two per cent of steps of a second."""
    fine = coarse = 0.0
    for _ in range(30):
        coarse = next_requests(SIDE, coarse, 3.0, 500.0, 1.0)
    for _ in range(30_000):
        batch = min(fine, SIDE.max_requests)
        fine += 0.001 * (3.0 - batch / 500.0 / SIDE.seconds(batch))

    assert coarse == pytest.approx(fine, rel=0.02)


def test_more_than_fit_wait_and_are_served_at_the_full_rate():
    """Beyond the table's end, requests leave as fast as a full group makes tokens."""
    after = next_requests(SIDE, 500.0, 0.0, 100.0, 10.0)

    assert 500.0 - after == pytest.approx(10.0 * 64 / 100 / 0.052)

"""The formulas of a queue against the queue itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.throughput.queue import mean_wait, utilisation_at_wait, wait_distribution

PROMPTS = 1_000_000


@pytest.mark.parametrize("utilisation", [0.5, 0.54, 0.8])
def test_waits_are_those_of_a_queue_that_is_played(utilisation):
    """The mean, the tenth and the hundredth longest of a million prompts wait as long as the formulas say."""
    between = np.random.default_rng(0).exponential(1 / utilisation, PROMPTS)
    work = np.cumsum(1 - between)
    waits = work - np.minimum.accumulate(np.minimum(work, 0))
    wait = wait_distribution(utilisation)

    assert np.mean(waits) == pytest.approx(mean_wait(utilisation), rel=0.03)
    for share in (0.1, 0.01):
        assert np.quantile(waits, 1 - share) == pytest.approx(wait.wait_exceeded_by(share), rel=0.05)


@given(st.floats(1e-6, 0.999_999))
def test_the_waits_have_the_queues_mean(utilisation):
    """Who waits at all waits for the shortest wait and longer: together that is the mean of all."""
    wait = wait_distribution(utilisation)

    assert wait.waiting * (wait.shortest + wait.longer) == pytest.approx(mean_wait(utilisation), rel=1e-6)
    assert wait.shortest >= 0
    assert wait.wait_exceeded_by(utilisation) == 0


@given(st.floats(0, 0.999))
def test_a_mean_wait_belongs_to_one_utilisation(utilisation):
    """The utilisation of a mean wait is the one that it came from."""
    assert utilisation_at_wait(mean_wait(utilisation)) == pytest.approx(utilisation)

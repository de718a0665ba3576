"""A rank whose own work takes far longer than its peers' holds up its unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.gateway.ranks.stragglers import MIN_DIFFERENCE_US, SLOW, find_straggler


@pytest.mark.parametrize(
    ("own_us", "found"),
    [
        ([20_000, 20_000, 60_000, 20_000], (2, 3.0)),
        ([40_000, 20_000], (0, 2.0)),
        ([20_000, 22_000, 21_000, 29_000], None),
        ([1_000, 1_000, 4_000], None),
        ([60_000, 60_000, 60_000, 10_000], None),
        ([20_000, 0, 90_000], None),
        ([90_000], None),
        ([], None),
    ],
    ids=["one of four", "one of two", "near", "by little", "one is fast", "one said nothing", "alone", "nobody"],
)
def test_a_rank_is_slow_beside_its_peers(own_us, found):
    """A rank is slow if its time exceeds its peers' by a factor and a difference, once all have reported."""
    assert find_straggler(own_us) == found


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=9), st.randoms())
def test_the_same_rank_is_slow_in_any_order(own_us, shuffled):
    """In any order the slowest rank over both thresholds is named."""
    found = find_straggler(own_us)
    other = list(own_us)
    shuffled.shuffle(other)

    if found is not None:
        number, times = found
        assert own_us[number] == max(own_us)
        assert times >= SLOW
        assert own_us[number] >= min(own_us) + MIN_DIFFERENCE_US
    assert (find_straggler(other) is None) == (found is None)

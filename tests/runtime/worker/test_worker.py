"""A rank reports its progress while it loads."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.worker.worker import throttle_progress


@given(st.integers(1, 50), st.integers(1, 300))
def test_each_further_part_is_said_once(num_parts, total):
    """Progress is reported at most once for each part, rises to 1, and never counts ahead."""
    said = []
    progress = throttle_progress(num_parts, said.append)
    for done in range(1, total + 1):
        progress(done, total)
        assert said == [] or said[-1] <= done / total

    assert said == sorted(set(said))
    assert len(said) == min(num_parts, total)
    assert said[-1] == 1

"""The wait for room follows from recent answers' times and the number of running requests."""

import pytest

from runtime.gateway.telemetry.pace import Pace


@pytest.mark.parametrize(
    ("seconds", "num_running", "num_needed", "wait_s"),
    [([], 8, 1, 1), ([20], 0, 1, 1), ([20], 10, 1, 2), ([20], 10, 4, 8), ([0.5], 10, 1, 1), ([9000], 2, 2, 60)],
)
def test_a_wait_is_until_enough_have_ended(seconds, num_running, num_needed, wait_s):
    """One of 10 requests of 20 seconds ends every 2 seconds; a wait is 1 to 60 seconds."""
    pace = Pace()
    for took in seconds:
        pace.record(took)

    assert pace.wait_s(num_running, num_needed) == wait_s


def test_the_latest_answers_count():
    """Short answers after long ones shorten the wait."""
    pace = Pace()
    for took in [60] * 5 + [1] * 50:
        pace.record(took)

    assert pace.wait_s(1, 1) == 2

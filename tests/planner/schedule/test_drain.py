"""How long a unit takes to answer what it has begun: the formula beside requests that are drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.rules.check import check_spec
from planner.schedule.drain import drain_s, share_left
from tests.planner.schedule.test_derived import PAIR


@pytest.mark.parametrize(("median", "p99"), [(1000, 12_000), (200, 400)])
def test_what_is_left_is_as_among_drawn_requests(median, p99):
    """The share with more than that left is the one among requests that arrive evenly and are looked at once."""
    rng = np.random.default_rng(3)
    lengths = median * (p99 / median) ** (rng.standard_normal(400_000) / 2.3263)
    begun = rng.uniform(0, lengths.max(), lengths.size)  # tokens before the look: one token a unit of time
    left = (lengths - begun)[lengths > begun]

    for tokens in (median / 2, median, p99 / 2):
        assert share_left(tokens, median, p99) == pytest.approx((left > tokens).mean(), abs=0.05)


def test_equal_lengths_end_evenly():
    """A tenth has more than 90 tokens left where all answers have 100."""
    assert share_left(90, 100, 100) == pytest.approx(0.1)
    assert drain_s(100, 100, 0.9, 10_000, 0.05) == pytest.approx(4.5, abs=0.05)


@given(st.integers(1, 5000), st.floats(1, 50), st.floats(0.5, 0.9999), st.integers(1, 100_000))
def test_a_drain_answers_the_share_that_it_says(median, spread, answered, most):
    """It leaves no more than that, and is no longer than the longest answer."""
    seconds = drain_s(median, median * spread, answered, most, 1.0)

    assert 0 < seconds <= most
    assert seconds == most or share_left(seconds, median, median * spread) <= 1 - answered + 1e-6


def test_a_plan_derives_the_drain(tmp_path):
    """ServeGen's lengths at 50 ms a token: the plan says the time, and what it rests on."""
    spec = f"{PAIR}slo: {{tpot_ms: 50}}\ntraffic: {{input_tokens: 1e9, output_tokens: 1e8, output_lengths: LENGTHS}}\n"
    windows = '[{at: "00:00", prefill_units: 1, decode_units: 1}, {at: "08:00", prefill_units: 2, decode_units: 2}]'
    spec = spec.replace("LENGTHS", "{median: 1000, p99: 12000}").replace("units: 2, ", "max_request_tokens: 32768, ")
    (tmp_path / "spec.yaml").write_text(f"{spec}schedule: {{drain: auto, answered: 0.99, windows: {windows}}}\n")
    plan = run_passes(check_spec(tmp_path / "spec.yaml"))

    (decision,) = [each for each in plan.choice.decisions if each.path == "schedule.drain"]
    assert plan.spec.schedule.drain == pytest.approx(drain_s(1000, 12_000, 0.99, 32768, 0.05), abs=1)
    assert decision.why == "0.99 of the answers in flight end within it, at 50 ms a token"

"""Failures to expect, what they cost, and the spares for them."""

from math import exp, factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.uptime import estimate_uptime, fewest_spares
from planner.layout.layout import lay_out
from planner.rules.check import check_spec

SPEC = """
version: 1
name: tide
model: deepseek-r1
cluster: {gpu: h800, nodes: 278, gpus_per_node: 8}
prefill: {units: 29, ep_size: 32, redundant_experts: 32, precision: fp8}
decode: {units: 9, ep_size: 144, redundant_experts: 32, precision: fp8}
uptime: {}
"""


@pytest.fixture
def uptime_of(tmp_path):
    """A function: the estimate for a spec's text."""

    def estimate(text):
        (tmp_path / "spec.yaml").write_text(text)
        spec = check_spec(tmp_path / "spec.yaml")
        return estimate_uptime(spec, [lay_out(spec, phase) for phase in spec.phases])

    return estimate


def test_failures_are_those_of_metas_parts(uptime_of):
    """356 hardware failures of 2,048 nodes in 54 days are 0.89 a day of 278 nodes."""
    found = uptime_of(SPEC)

    assert found.failures_per_day == pytest.approx(356 / 54 * 278 / 2048, rel=0.005)
    assert found.nodes_in_repair == pytest.approx(found.failures_per_day)  # of a day each
    assert (found.spares_needed, found.spares) == (5, 0)


def test_a_given_mean_time_is_per_node(uptime_of):
    """With a week per node, 266 of 278 nodes are in units and fail 278 / 7 times a day with the rest."""
    found = uptime_of(SPEC.replace("uptime: {}", "uptime: {mtbf: 168h}"))

    assert found.failures_per_day == pytest.approx(278 / 7)


def test_smaller_units_fail_as_often_and_lose_half_as_much(uptime_of):
    """EP72 beside EP144 on the same nodes: five minutes of 9 nodes instead of 18, and half the capacity at once."""
    large = uptime_of(SPEC).phases["decode"]
    small = uptime_of(SPEC.replace("units: 9, ep_size: 144", "units: 18, ep_size: 72")).phases["decode"]

    assert small.failures_per_day == pytest.approx(large.failures_per_day)
    assert small.node_hours_lost_per_day == pytest.approx(large.node_hours_lost_per_day / 2)
    assert large.node_hours_lost_per_day == pytest.approx(large.failures_per_day * 18 * 5 / 60)
    assert (small.capacity_at_once, large.capacity_at_once) == (1 / 18, 1 / 9)
    assert 1 - small.availability == pytest.approx((1 - large.availability) / 2, rel=1e-3)


def test_units_that_are_off_do_not_fail(uptime_of):
    """Half a day of half the units is a quarter less."""
    windows = (
        "schedule: {windows: [{at: '00:00', prefill_units: 14, decode_units: 5},"
        " {at: '12:00', prefill_units: 28, decode_units: 10}]}\n"
    )
    spec = SPEC.replace("units: 29, ", "").replace("units: 9, ", "").replace("nodes: 278", "nodes: 292")
    day, always = uptime_of(spec + windows), uptime_of(SPEC.replace("29", "28").replace("9,", "10,"))

    assert day.phases["prefill"].failures_per_day == pytest.approx(always.phases["prefill"].failures_per_day * 0.75)


def test_a_spec_that_does_not_ask_gets_no_estimate(uptime_of):
    """Without the section nothing is estimated."""
    assert uptime_of(SPEC.replace("uptime: {}\n", "")) is None


@pytest.mark.parametrize("nodes", [740, 746, 2000])
def test_spares_of_a_very_large_cluster_are_near_the_mean(nodes):
    """exp(-746) is 0 in floating point; 2.33 standard deviations are 99 % of a normal distribution."""
    assert fewest_spares(nodes, 0.99) == pytest.approx(nodes + 2.33 * nodes**0.5, abs=2)


@given(st.floats(0, 40), st.floats(0.5, 0.9999))
def test_spares_are_the_fewest_that_are_enough(nodes, availability):
    """Beside the sum of Poisson's probabilities."""
    spares = fewest_spares(nodes, availability)

    def enough(number):
        return sum(exp(-nodes) * nodes**k / factorial(k) for k in range(number + 1))

    assert enough(spares) >= availability - 1e-12
    assert spares == 0 or enough(spares - 1) < availability + 1e-12

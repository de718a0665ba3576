"""How long pods get to start: longer than their weights take, and at least as long as anybody waits for their unit."""

from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.loading import start_budget_s
from planner.spec.kubernetes import KubernetesSpec

DAY_S = 86_400


def kubernetes(load_rate, ready_timeout):
    """The section with these two."""
    return KubernetesSpec.model_validate({"load_rate": f"{load_rate}MB/s", "ready_timeout": f"{ready_timeout}s"})


@given(
    engine=st.sampled_from(["sglang", "vllm"]),
    node_bytes=st.integers(0, 10**13),
    load_rate=st.integers(1, 100_000),
    ready_timeout=st.integers(10, DAY_S),
)
def test_other_engines_get_half_an_hour_and_whatever_the_spec_waits(engine, node_bytes, load_rate, ready_timeout):
    """They compile kernels for 20 minutes before they answer; and reading may take twice as long as planned."""
    budget_s = start_budget_s(kubernetes(load_rate, ready_timeout), engine, node_bytes)
    reading_s = node_bytes / (load_rate * 1e6) * (1 - 1e-9)

    assert budget_s >= max(1800, ready_timeout)
    assert budget_s >= reading_s + max(reading_s, 1200)


@given(node_bytes=st.integers(0, 10**13), ready_timeout=st.integers(10, DAY_S))
def test_ours_has_started_once_its_weights_are_loaded(node_bytes, ready_timeout):
    """It compiles later, so `ready_timeout` does not matter: the time to read, and as long again or ten minutes."""
    reading_s = node_bytes / 2e9

    assert (
        0
        <= start_budget_s(kubernetes(2000, ready_timeout), "tidemill", node_bytes) - reading_s - max(reading_s, 600)
        < 1 + 1e-6
    )

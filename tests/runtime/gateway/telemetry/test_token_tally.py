"""The tally of tokens is exported as Prometheus's client library would export it."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from runtime.gateway.telemetry.token_tally import TokenTally

BOUNDS_S = (0.005, 0.01, 0.5, 1, 2.5)


@given(st.lists(st.none() | st.floats(0, 5) | st.sampled_from(BOUNDS_S)))
def test_the_tally_is_told_as_the_library_tells_it(gaps):
    """A scrape's text equals the library's, except for the times of creation."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = TokenTally("m", BOUNDS_S)
    ours.register(tally)
    tokens = Counter("tidemill_generation_tokens_total", "Tokens generated.", ["model_name"], registry=theirs)
    between = Histogram(
        "tidemill_inter_token_latency_seconds",
        "Time between two tokens.",
        ["model_name"],
        registry=theirs,
        buckets=BOUNDS_S,
    )
    tokens, between = tokens.labels("m"), between.labels("m")
    for gap in gaps:
        tokens.inc()
        if gap is None:
            tally.count_first()
        else:
            tally.count_next(gap)
            between.observe(gap)

    def told(registry):
        return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]

    assert told(ours) == told(theirs)

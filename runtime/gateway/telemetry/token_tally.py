"""The metrics that every token changes, kept as plain numbers until Prometheus scrapes them.

Why it exists: the client library takes a lock for each number that it changes. For a request that is
cheap, but for every token it took a sixth of the gateway's time.
Only the event loop counts. A scrape runs on a thread of its own, and may see a token in one number but not yet in
another.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["TokenTally"]


class TokenTally(Collector):
    """The tokens of one model, and the times between tokens of an answer. `bounds_s` are the buckets' upper bounds."""

    def __init__(self, model_name: str, bounds_s: Sequence[float]) -> None:
        self._model_name = model_name
        self._bounds_s = bounds_s
        self._num_tokens = 0
        self._num_gaps = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def count_first(self) -> None:
        """Count an answer's first token."""
        self._num_tokens += 1

    def count_next(self, seconds: float) -> None:
        """Count a token that came `seconds` after the previous one."""
        self._num_tokens += 1
        self._num_gaps[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: the number of tokens, and the histogram of times between tokens."""
        labels, values = ["model_name"], [self._model_name]
        tokens = CounterMetricFamily("tidemill_generation_tokens", "Tokens generated.", labels=labels)
        tokens.add_metric(values, self._num_tokens)
        yield tokens
        gaps = HistogramMetricFamily("tidemill_inter_token_latency_seconds", "Time between two tokens.", labels=labels)
        ends = [*map(floatToGoString, self._bounds_s), "+Inf"]
        gaps.add_metric(values, list(zip(ends, accumulate(self._num_gaps), strict=True)), self._sum_s)
        yield gaps

"""What a deployment has done lately, computed from the metrics of successive looks. Pure.

    rate       what counters have grown by, over the time between two looks
    mean       what a summary's sum has grown by, over what its count has
    quantile   within a histogram's bucket in proportion, as Prometheus' histogram_quantile estimates it

A process that started again counts from 0: then its growth is what it has now. One that only the newer look has seen
has no growth yet.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite

from stacks.live.look import Look
from stacks.measured.samples import Sample

__all__ = ["Latency", "Traffic", "TrafficLog", "UnitLoad"]

WINDOW_S = 60.0  # of latencies and cache hits
RATE_S = 10.0  # of rates
PERCENTILE = 0.99

Page = Sequence[Sample]
Counts = Mapping[tuple[str, str, tuple[tuple[str, str], ...]], float]  # source, name and labels of a sample -> value


@dataclass(frozen=True)
class Latency:
    """The mean and the 99th percentile of a latency, in milliseconds.

    The percentile is infinite if it lies above the histogram's largest bucket.
    """

    mean_ms: float
    p99_ms: float


@dataclass(frozen=True)
class UnitLoad:
    """The load of a unit, computed from its ranks that were asked. A figure is None if no rank has it.

    `balance` compares the rows of the busiest rank with the mean rank's, averaged over layers: 1 is even.
    """

    requests_per_rank: float | None
    kv_usage: float | None  # of the fullest rank, of 1
    balance: float | None
    hits: float | None  # share of looked-up prompt tokens found in any tier


@dataclass(frozen=True)
class Traffic:
    """The traffic of the last minute, as the gateways count it. A figure is None if no gateway has it."""

    running: float | None
    waiting: float | None
    prompt_tokens_per_s: float | None
    generated_tokens_per_s: float | None
    rejected_per_s: float | None
    hits: float | None  # share of prompt tokens whose KV was found
    ttft: Latency | None
    itl: Latency | None
    units: Mapping[str, UnitLoad]


class TrafficLog:
    """Keeps the looks of the last minute, and the rates of generated tokens for a sparkline."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Counts]] = deque()
        self.generated: deque[float] = deque(maxlen=120)

    def add(self, look: Look, now: float) -> Traffic:
        """Record a look, taken at `now` seconds of a monotonic clock. Return the traffic of the last minute."""
        counts = {
            (source, sample.name, tuple(sorted(sample.labels.items()))): value
            for source, page in look.pages.items()
            for sample in page
            if isfinite(value := _number(sample.written))
        }
        self._looks.append((now, counts))
        while self._looks[0][0] < now - WINDOW_S:
            self._looks.popleft()
        traffic = self._measure(look, now, counts)
        if traffic.generated_tokens_per_s is not None:
            self.generated.append(traffic.generated_tokens_per_s)
        return traffic

    def _measure(self, look: Look, now: float, counts: Counts) -> Traffic:
        recent = next(each for each in self._looks if each[0] >= now - RATE_S)
        seconds, lately = now - recent[0], _counter_growth(recent[1], counts)
        minute = _counter_growth(self._looks[0][1], counts)

        def rate(name: str) -> float | None:
            grown = _sum(lately, name)
            return None if grown is None or seconds <= 0 else grown / seconds

        return Traffic(
            running=_sum(counts, "num_requests_running"),
            waiting=_sum(counts, "num_requests_waiting"),
            prompt_tokens_per_s=rate("prompt_tokens_total"),
            generated_tokens_per_s=rate("generation_tokens_total"),
            rejected_per_s=rate("num_requests_rejected_total"),
            hits=_ratio(_sum(minute, "prefix_found_tokens_total"), _sum(minute, "prompt_tokens_total")),
            ttft=_latency(minute, "time_to_first_token_seconds"),
            itl=_latency(minute, "inter_token_latency_seconds"),
            units={unit.name: _unit_load(unit.name, counts, minute) for unit in look.units},
        )


def _unit_load(unit: str, counts: Counts, minute: Counts) -> UnitLoad:
    """Return the load of a unit.

    `counts` has the present values of all metrics, and `minute` their growth in the last minute. Their sources are
    named UNIT/RANK.
    """
    here = _unit_counts(counts, unit)
    grown = _unit_counts(minute, unit)
    kv = [value for _, value in _values(here, "kv_cache_usage_perc")]
    requests = [_sum(here, f"rank_requests_{kind}") for kind in ("running", "waiting")]
    balances = [value for _, value in _values(here, "expert_load_imbalance")]
    looked_up = _sum(grown, "prefix_cache_queries_total", lambda labels: labels.get("tier") == "device")
    return UnitLoad(
        requests_per_rank=_ratio(None if None in requests else sum(filter(None, requests)), float(len(kv))),
        kv_usage=max(kv, default=None),
        balance=sum(balances) / len(balances) if balances else None,
        hits=_ratio(_sum(grown, "prefix_cache_hits_total"), looked_up),
    )


def _unit_counts(counts: Counts, unit: str) -> Counts:
    return {key: value for key, value in counts.items() if key[0].rpartition("/")[0] == unit}


def _counter_growth(before: Counts, after: Counts) -> Counts:
    """Return how much each counter has grown since `before`. A counter that has shrunk was reset, and counts from 0."""
    return {
        key: value - before[key] if value >= before[key] else value for key, value in after.items() if key in before
    }


def _latency(grown: Counts, name: str) -> Latency | None:
    """Return the latencies of the observations that a histogram gained; None if it gained none."""
    count, total = _sum(grown, f"{name}_count"), _sum(grown, f"{name}_sum")
    if not count or total is None:
        return None
    buckets: dict[float, float] = {}
    for labels, value in _values(grown, f"{name}_bucket"):
        bound = _number(labels.get("le", ""))
        buckets[bound] = buckets.get(bound, 0.0) + value
    return Latency(1000 * total / count, 1000 * _quantile(PERCENTILE, buckets))


def _quantile(share: float, buckets: Mapping[float, float]) -> float:
    """Return the value that `share` of the observations do not exceed, interpolated between two buckets' bounds.

    `buckets` maps each bucket's upper bound to the number of observations up to it. The value is infinite if it is
    above the largest finite bound, or if there are no observations.
    """
    edges = [(0.0, 0.0), *sorted(buckets.items())]
    wanted = share * edges[-1][1]
    for (low, below), (high, upto) in pairwise(edges):
        if upto >= wanted and upto > below:
            return inf if high == inf else low + (high - low) * (wanted - below) / (upto - below)
    return inf


def _sum(counts: Counts, name: str, wanted: Callable[[Mapping[str, str]], bool] = lambda _: True) -> float | None:
    """Return the sum of a metric over all sources; None if none has it."""
    found = [value for labels, value in _values(counts, name) if wanted(labels)]
    return sum(found) if found else None


def _values(counts: Counts, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
    for (_, metric, labels), value in counts.items():
        if metric == name:
            yield dict(labels), value


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _number(written: str) -> float:
    """Return a sample's number; NaN if `written` is no number."""
    try:
        return float(written)
    except ValueError:
        return float("nan")

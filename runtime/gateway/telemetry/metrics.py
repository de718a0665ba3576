"""The gateway's metrics.

Names and meanings are vLLM's with our prefix, so that dashboards carry over. As the gateway sees them:
    waiting    requests without a token yet
    running    requests between the first token and the last
    TTFT, ITL, end to end    seconds until tokens arrive here, without the time to send the HTTP answer
    by phase   what ready units have to do (`phase_loads.py`)

It does not measure what ranks do (KV in use, experts, transfers): ranks have metrics of their own.
Source: vLLM docs, "Production metrics".
"""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from runtime.gateway.edge.http_errors import KEY_LIMIT_REACHED, OVERLOADED, ApiError
from runtime.gateway.ranks.answer_lengths import AnswerLengths
from runtime.gateway.telemetry.pace import Pace
from runtime.gateway.telemetry.phase_loads import PhaseLoads
from runtime.gateway.telemetry.token_tally import TokenTally

__all__ = ["GatewayMetrics", "RequestClock"]

LABELS = ("model_name",)
REJECTED = "Requests answered with 429: no rank had room, or a limit of the key was reached."
TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120)
ITL_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
E2E_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)


class GatewayMetrics:
    """The gateway's metrics of one model."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"tidemill_{name}", meaning, LABELS, registry=registry).labels(model_name)

        def counter(name: str, meaning: str) -> Counter:
            return Counter(f"tidemill_{name}", meaning, LABELS, registry=registry).labels(model_name)

        def histogram(name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"tidemill_{name}", meaning, LABELS, registry=registry, buckets=buckets).labels(model_name)

        self.running = gauge("num_requests_running", "Requests between their first and last token.")
        self.waiting = gauge("num_requests_waiting", "Requests without a token yet.")
        self.ttft = histogram("time_to_first_token_seconds", "Time to the first token.", TTFT_BUCKETS_S)
        self.e2e = histogram("e2e_request_latency_seconds", "Time to the last token, if it came.", E2E_BUCKETS_S)
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of requests that got a token.")
        self.expected = counter("prefix_expected_tokens_total", "Of these, expected at the rank that was chosen.")
        self.found = counter("prefix_found_tokens_total", "Of these, found there.")
        self.failed = counter("num_requests_failed_total", "Requests answered with 503, or broken off.")
        self.resumed = counter("num_requests_resumed_total", "Times a request went on at other ranks: it had lost one.")
        rejected = Counter("tidemill_num_requests_rejected_total", REJECTED, (*LABELS, "code"), registry=registry)
        self._rejected = {code: rejected.labels(model_name, code) for code in (OVERLOADED, KEY_LIMIT_REACHED)}
        self.pace = Pace()
        self.tokens = TokenTally(model_name, ITL_BUCKETS_S)
        registry.register(self.tokens)
        self.phases = PhaseLoads(model_name)
        registry.register(self.phases)
        self.lengths = AnswerLengths()

    def count_refusal(self, error: ApiError) -> None:
        """Count the requests that `error` refuses, if it says to try again (429)."""
        if error.status == 429 and error.code is not None:
            self._rejected[error.code].inc(error.num_requests)


class RequestClock:
    """Times one request and moves it through the gauges: waiting, then running, then neither.

    Its times are of time.monotonic.
    """

    def __init__(self, metrics: GatewayMetrics, num_prompt_tokens: int) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self.started = time.monotonic()
        self.first_token: float | None = None
        self.last_token: float | None = None
        self._num_tokens = 0
        self._has_ended = False
        metrics.waiting.inc()

    def note_prefix(self, num_expected_tokens: int, num_found_tokens: int) -> None:
        """Count how much of the prompt was expected in its rank's cache, and how much was found there."""
        self._metrics.expected.inc(num_expected_tokens)
        self._metrics.found.inc(num_found_tokens)

    def note_token(self) -> None:
        """Record that a token has arrived. A request runs, instead of waiting, from its first token on."""
        now = time.monotonic()
        if self.last_token is None:
            self._metrics.waiting.dec()
            self._metrics.running.inc()
            self._metrics.ttft.observe(now - self.started)
            self._metrics.prompt_tokens.inc(self._num_prompt_tokens)
            self._metrics.tokens.count_first()
            self.first_token = now
        else:
            self._metrics.tokens.count_next(now - self.last_token)
        self.last_token = now
        self._num_tokens += 1

    def fail(self) -> None:
        """Record that the request is over, because ranks or the gateway failed."""
        if not self._has_ended:
            self._metrics.failed.inc()
        self.end(answered=False)

    def end(self, *, answered: bool) -> None:
        """Record that the request is over, and its time and length if it is `answered`. Only the first call counts."""
        if self._has_ended:
            return
        self._has_ended = True
        (self._metrics.waiting if self.last_token is None else self._metrics.running).dec()
        if answered:
            seconds = time.monotonic() - self.started
            self._metrics.e2e.observe(seconds)
            self._metrics.pace.record(seconds)
            self._metrics.lengths.record(self._num_tokens)

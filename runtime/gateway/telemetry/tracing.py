"""OpenTelemetry's view of a completion or chat: one span for the call, and one for each phase of each of its prompts.

    POST /v1/completions         from its arrival to its last token; its parent is the caller's `traceparent`
    |-- prefill                  from sending the prompt to its first token: unit and rank
    `-- decode                   from the first token to the last: unit and rank

Spans are made when a call has ended, from times that the gateway has anyway, so they cost nothing per token. They hold
no text of the call. Without an endpoint in the environment there are no spans, and nothing is imported.
Ranks send no spans. Their phases are measured here, so the time that a token travels is included.

Sources: W3C Trace Context for `traceparent`; OpenTelemetry, "OTLP Exporter Configuration" for the variables and
"Semantic conventions for generative AI" for the names that begin with gen_ai.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import RuntimeFailure

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

__all__ = ["Phase", "Traces", "configure_traces"]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVICE = "tidemill-gateway"


@dataclass(frozen=True)
class Phase:
    """One phase of one prompt, at the rank that worked on it. Both times are of time.monotonic."""

    name: str
    unit: str
    rank: int
    started_at: float
    ended_at: float


class Traces:
    """Makes a call's spans and passes them to the provider's exporters."""

    def __init__(self, provider: "TracerProvider", model_name: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("tidemill")
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def record_call(
        self,
        path: str,
        headers: Mapping[str, str],
        request_id: str,
        started_at: float,
        phases: Sequence[Phase],
        num_tokens: tuple[int, int],
        *,
        is_answered: bool,
    ) -> None:
        """Make the spans of a call that is over.

        `num_tokens` has the number of prompt tokens and of answer tokens. `started_at` is of time.monotonic.
        """
        from opentelemetry.trace import SpanKind, StatusCode

        attributes: dict[str, str | int] = {
            "tidemill.request_id": request_id,
            "gen_ai.request.model": self._model_name,
            "gen_ai.usage.input_tokens": num_tokens[0],
            "gen_ai.usage.output_tokens": num_tokens[1],
        }
        clock_began_ns = time.time_ns() - time.monotonic_ns()  # the wall-clock time of time.monotonic's zero
        parent = self._propagator.extract(headers)
        call = self._tracer.start_span(
            f"POST {path}", parent, SpanKind.SERVER, attributes, start_time=_wall_clock_ns(clock_began_ns, started_at)
        )
        for phase in phases:
            self._record_phase(call, phase, request_id, clock_began_ns)
        if not is_answered:
            call.set_status(StatusCode.ERROR, "given up")
        call.end()

    def _record_phase(self, call: "Span", phase: Phase, request_id: str, clock_began_ns: int) -> None:
        from opentelemetry.trace import set_span_in_context

        attributes: dict[str, str | int] = {
            "tidemill.request_id": request_id,
            "tidemill.unit": phase.unit,
            "tidemill.rank": phase.rank,
        }
        start_time = _wall_clock_ns(clock_began_ns, phase.started_at)
        span = self._tracer.start_span(
            phase.name, set_span_in_context(call), attributes=attributes, start_time=start_time
        )
        span.end(_wall_clock_ns(clock_began_ns, phase.ended_at))

    def close(self) -> None:
        """Send the spans that have not been sent yet."""
        self._provider.shutdown()


def _wall_clock_ns(clock_began_ns: int, moment_s: float) -> int:
    return clock_began_ns + int(moment_s * 1e9)


def configure_traces(model_name: str) -> Traces | None:
    """Return the tracing that OpenTelemetry's variables ask for; None if they name no endpoint.

    Raises RuntimeFailure if OpenTelemetry is not installed.
    """
    endpoint = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RuntimeFailure(
            f"{endpoint} is set, but {error.name} is missing: pip install '.[otel]' in a checkout"
        ) from None
    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider, model_name)

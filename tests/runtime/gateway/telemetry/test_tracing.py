"""A call has spans for its phases in the caller's trace, and none without an endpoint."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from runtime.errors import RuntimeFailure
from runtime.gateway.core import app
from runtime.gateway.edge.idempotency import IdempotentCall
from runtime.gateway.telemetry import tracing
from runtime.gateway.telemetry.request_log import CallRecord
from runtime.gateway.telemetry.tracing import Phase, Traces, configure_traces

TRACE_ID, PARENT_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
CALLER = {"traceparent": f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"}


def spans(headers, *, is_answered=True):
    """Return the spans of a call that took half a second, the call's own last."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    now = time.monotonic()
    phases = [Phase("prefill", "prefill-0", 3, now - 0.4, now - 0.3), Phase("decode", "decode-1", 7, now - 0.3, now)]
    traces = Traces(provider, "m")
    traces.record_call("/v1/completions", headers, "cmpl-1", now - 0.5, phases, (11, 5), is_answered=is_answered)
    return exporter.get_finished_spans()


def test_a_call_has_its_phases_below_it():
    """A call's phases follow one another within its span, with its request and rank."""
    prefill, decode, call = spans({})

    assert [span.name for span in (prefill, decode, call)] == ["prefill", "decode", "POST /v1/completions"]
    assert {span.attributes["tidemill.request_id"] for span in (prefill, decode, call)} == {"cmpl-1"}
    assert {span.parent.span_id for span in (prefill, decode)} == {call.context.span_id}
    assert [(span.attributes["tidemill.unit"], span.attributes["tidemill.rank"]) for span in (prefill, decode)] == [
        ("prefill-0", 3),
        ("decode-1", 7),
    ]
    assert call.start_time < prefill.start_time < prefill.end_time == decode.start_time < decode.end_time
    assert decode.end_time <= call.end_time <= time.time_ns()
    assert (call.attributes["gen_ai.usage.input_tokens"], call.attributes["gen_ai.usage.output_tokens"]) == (11, 5)


def test_a_callers_trace_goes_on():
    """A call continues the trace in W3C's header, or begins one."""
    *_, call = spans(CALLER)
    *_, other = spans({"traceparent": "nonsense"})

    assert (call.context.trace_id, call.parent.span_id) == (TRACE_ID, PARENT_ID)
    assert other.parent is None


def test_a_call_that_ends_is_traced():
    """A route traces a call when it logs it."""
    told = []
    traces = SimpleNamespace(record_call=lambda *call, **end: told.append((call, end)))
    gateway = SimpleNamespace(log=SimpleNamespace(log_call=lambda *_, **__: None), traces=traces)
    request = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(gateway=gateway)), scope={"path": "/v1/x"}, headers=CALLER
    )
    counts = {"num_prompt_tokens": 2, "num_generated_tokens": 3, "num_hit_tokens": 0}
    generation = SimpleNamespace(close=list, units={}, phases=["phase"], is_answered=True, **counts)
    app._close_call(generation, SimpleNamespace(), IdempotentCall(), CallRecord(request, "cmpl-1", 1.5))

    assert told == [(("/v1/x", CALLER, "cmpl-1", 1.5, ["phase"], (2, 3)), {"is_answered": True})]


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_was_given_up_is_an_error(is_answered):
    """A call that was given up has the status error, and an answered one has none."""
    *_, call = spans({}, is_answered=is_answered)

    assert call.status.status_code is (StatusCode.UNSET if is_answered else StatusCode.ERROR)


def test_without_an_endpoint_nothing_is_imported():
    """Without an endpoint no tracing package is imported."""
    code = (
        "import sys, runtime.gateway.core.app as _;"
        " assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert configure_traces("m") is None


def test_a_missing_package_is_named(monkeypatch):
    """With an endpoint, a missing package is named."""
    monkeypatch.setenv(tracing.ENDPOINTS[0], "http://127.0.0.1:4317")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)

    with pytest.raises(RuntimeFailure, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is set, .*pip install '\.\[otel\]'"):
        configure_traces("m")

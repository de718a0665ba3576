"""The metrics port answers metrics and probes over HTTP."""

import errno
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter

from runtime.errors import RuntimeFailure
from runtime.protocol import metrics_server
from runtime.protocol.metrics_server import serve_metrics, target_path


@pytest.fixture
def port():
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def get(port, path):
    """Return status and text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_process_is_ready_when_it_says_so(port):
    """/readyz is 503 until the process is ready."""
    states = iter([False, True])

    with serve_metrics(CollectorRegistry(), "127.0.0.1", port, lambda: next(states)):
        answers = [get(port, "/readyz"), get(port, "/readyz")]

    assert answers == [(503, "not ready\n"), (200, "ready\n")]


def test_a_process_that_stands_still_says_so(port):
    """/health is 503 while the process does not move, whether it is ready or not."""
    states = iter([True, False])

    with serve_metrics(CollectorRegistry(), "127.0.0.1", port, lambda: True, lambda: next(states)):
        answers = [get(port, "/health"), get(port, "/health"), get(port, "/readyz")]

    assert answers == [(200, "moving\n"), (503, "not moving\n"), (200, "ready\n")]


def test_metrics_are_shown_whether_ready_or_not(port):
    """Metrics are shown even if the process is not ready."""
    registry = CollectorRegistry()
    Counter("steps", "Steps taken.", registry=registry).inc(3)

    with serve_metrics(registry, "127.0.0.1", port, lambda: False):
        status, text = get(port, "/metrics")

    assert (status, "steps_total 3.0" in text) == (200, True)


def test_a_wrong_path_is_no_answer_to_a_probe(port):
    """A misspelt path is a 404."""
    with serve_metrics(CollectorRegistry(), "127.0.0.1", port, lambda: False):
        answers = [get(port, path) for path in ("/", "/readyz/", "/ready", "/metrics/")]

    assert answers == [(404, "not found; there are /metrics, /readyz, /health\n")] * 4


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/readyz", "/readyz"),
        ("http://a:1/readyz", "/readyz"),
        ("HTTPS://a", "/"),
        ("/x://y/z", "/x://y/z"),
        ("*", "*"),
    ],
)
def test_a_target_may_be_a_whole_url(target, path):
    """A target that is a whole URL is answered by its path."""
    assert target_path(target) == path


def test_a_taken_port_is_a_sentence():
    """A taken port is one sentence, not a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(RuntimeFailure) as error, serve_metrics(CollectorRegistry(), "127.0.0.1", number):
            pass

    assert str(error.value) == f"cannot listen on 127.0.0.1:{number} (metrics): address already in use"


def test_an_ipv6_address_will_do():
    """The port may be on an IPv6 address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
            number = taken.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")

    with serve_metrics(CollectorRegistry(), "::1", number):
        status = urllib.request.urlopen(f"http://[::1]:{number}/readyz", timeout=10).status

    assert status == 200


def test_a_connection_that_breaks_is_not_in_the_log(port, capfd):
    """A broken connection is not logged."""
    with serve_metrics(CollectorRegistry(), "127.0.0.1", port):
        num_threads = threading.active_count()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as broken:
            broken.sendall(b"GET /readyz HTTP/1.1\r\n")
            while threading.active_count() == num_threads:
                time.sleep(0.01)
            broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
        while threading.active_count() > num_threads:
            time.sleep(0.01)

    assert capfd.readouterr().err == ""


def test_a_request_that_the_library_cannot_read_gets_plain_metrics(port, capfd):
    """An Accept header that prometheus_client cannot read gets plain metrics."""
    strange = {"Accept": "application/openmetrics-text;version=abc"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=strange)

    with serve_metrics(CollectorRegistry(), "127.0.0.1", port):
        status = urllib.request.urlopen(request, timeout=10).status

    assert (status, capfd.readouterr().err) == (200, "")


def test_an_idle_connection_ends_in_time(port, monkeypatch):
    """An idle connection is closed after a while."""
    monkeypatch.setattr(metrics_server, "LONGEST_S", 0.1)

    with (
        serve_metrics(CollectorRegistry(), "127.0.0.1", port),
        socket.create_connection(("127.0.0.1", port), timeout=5) as idle,
    ):
        assert idle.recv(1) == b""


def test_idle_connections_keep_no_probe_waiting(port, monkeypatch):
    """When there are too many idle connections, the oldest is closed."""
    monkeypatch.setattr(metrics_server, "MAX_CONNECTIONS", 2)

    with serve_metrics(CollectorRegistry(), "127.0.0.1", port):
        idle = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(2)]
        answer = get(port, "/readyz")
        ended = idle[0].recv(1)
        for each in idle:
            each.close()

    assert (answer, ended) == ((200, "ready\n"), b"")


def test_a_process_without_a_descriptor_waits_for_one(monkeypatch):
    """A process without a free descriptor pauses instead of spinning."""

    def accept(_):
        raise OSError(errno.EMFILE, "Too many open files")

    slept = []
    monkeypatch.setattr(metrics_server, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr("socketserver.TCPServer.get_request", accept)
    with pytest.raises(OSError, match="Too many open files"):
        metrics_server._Server.get_request(metrics_server._Server.__new__(metrics_server._Server))

    assert slept == [metrics_server.PAUSE_S]

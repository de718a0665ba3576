"""The proxy in front of vLLM's router, as rendered, in a real nginx: what it passes on and what it repeats.

A stub stands for the router. Ports and folders are replaced, so that tests may run beside each other.
"""

import http.client
import os
import re
import socket
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engines.edge import ANSWERED, EDGE_COMMAND, ROUTER_ADDRESS, ROUTER_PORT, TRIES, make_edge
from tests.planner.engines.wheels import require_nginx
from tests.ports import free_port

PORT = 8000
STARTED_S = 30
CLOSED = ["/", "/add_worker?url=http://10.0.0.1:1", "/remove_worker", "/workers", "/pause", "/v1/load_lora_adapter"]
PIECES = ["/", "//", "/..", "/.", "/%2e%2e", "/%2E.", "%2f", "%00", ";x", "?a=/workers", "#", "/v1", "/v1/models"]
PIECES += ["/health", "/liveness", "/workers", "/pause", "/v1/completions", "/V1/models", "\\..\\workers"]


class Router(ThreadingHTTPServer):
    """A stub that writes down what comes, and answers with the next of `statuses`, or 200 when there are no more."""

    def __init__(self):
        super().__init__((ROUTER_ADDRESS, 0), Answer)
        self.came, self.statuses, self.read = [], [], threading.Event()


class Answer(BaseHTTPRequestHandler):
    """An answer in two pieces; the second follows once the first is read, where somebody asks for a stream."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        """Write down method, path and body, and answer."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.came.append((self.command, self.path, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"1")
        self.wfile.flush()
        if body == b"stream":
            self.server.read.wait(STARTED_S)
        self.wfile.write(b"2")

    do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_GET

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def edge(tmp_path_factory):
    """The address of the proxy, and the router behind it."""
    nginx, folder = require_nginx(), tmp_path_factory.mktemp("edge")
    router = Router()
    threading.Thread(target=router.serve_forever, daemon=True).start()
    port = free_port()
    config = make_edge(PORT, "image").config
    behind = f"{ROUTER_ADDRESS}:{ROUTER_PORT}", f"{ROUTER_ADDRESS}:{router.server_port}"
    for old, new in (behind, (f"listen {PORT}", f"listen 127.0.0.1:{port}"), ("/tmp/", f"{folder}/")):
        assert old in config
        config = config.replace(old, new)
    (folder / "edge.conf").write_text(config)
    command = [str(nginx), *EDGE_COMMAND[1:-1], str(folder / "edge.conf")]
    command += ["-g", "user root;"] if os.geteuid() == 0 else []  # as another user it could not write to the folder
    with subprocess.Popen(command) as running:
        try:
            wait_for(port)
            yield port, router
        finally:  # else leaving `with` would wait for ever
            running.terminate()
    router.shutdown()


@pytest.fixture
def port(edge):
    """The proxy's port, in front of a router to which nothing came yet."""
    port, router = edge
    router.came.clear()
    router.statuses.clear()
    return port


@pytest.fixture
def router(edge, port):
    """The router behind that port."""
    return edge[1]


def wait_for(port):
    """Return when somebody listens."""
    until = time.monotonic() + STARTED_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("nginx does not listen")


@contextmanager
def calling(port, method, path, body=None):
    """Yield the answer to a call whose path is sent as it is."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=STARTED_S)) as connection:
        connection.putrequest(method, path, skip_accept_encoding=True)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        yield connection.getresponse()


def status_of(port, *call):
    """The status of a whole answer."""
    with calling(port, *call) as answer:
        answer.read()
        return answer.status


def test_a_worker_may_open_as_many_files_as_it_has_connections():
    """Whatever limit its container begins with: 1,024 would be 512 streams."""
    found = dict(re.findall(r"(worker_\w+) (\d+);", make_edge(PORT, "image").config))

    assert int(found["worker_rlimit_nofile"]) >= int(found["worker_connections"])


def test_every_route_for_answers_reaches_the_router(port, router):
    """Each call reaches it with its query, the part behind `?`."""
    calls = [(method, path) for method, paths in ANSWERED.items() for path in paths]

    assert [status_of(port, method, f"{path}?a=1") for method, path in calls] == [200] * len(calls)
    assert [(method, path) for method, path, _ in router.came] == [(method, f"{path}?a=1") for method, path in calls]


@pytest.mark.parametrize("path", CLOSED)
def test_a_route_for_administrators_is_not_there(port, router, path):
    """No method gets through."""
    statuses = [status_of(port, method, path) for method in ("GET", "POST", "PUT", "DELETE")]

    assert (statuses, router.came) == ([404] * 4, [])


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=5),
)
def test_no_way_of_writing_a_path_opens_another(edge, method, pieces):
    """Whatever reaches the router is a route for answers as it is written there, by its own method."""
    port, router = edge
    router.came.clear()
    status_of(port, method, f"/{''.join(pieces)}")
    own = {"HEAD": "GET"}.get(method, method)

    assert all(path.partition("?")[0] in ANSWERED.get(own, ()) for _, path, _ in router.came)


def test_a_request_that_fails_at_a_dead_unit_is_asked_again(port, router):
    """Its whole body is sent again until it is answered."""
    router.statuses += [500, 503]
    body = b"{" + b" " * 3_000_000 + b"}"

    assert status_of(port, "POST", "/v1/completions", body) == 200
    assert router.came == [("POST", "/v1/completions", body)] * 3


def test_a_request_that_always_fails_ends(port, router):
    """After as many tries as there are."""
    router.statuses += [500] * 10

    assert status_of(port, "POST", "/v1/completions", b"{}") == 500
    assert len(router.came) == TRIES


def test_a_mistake_of_the_caller_is_not_asked_again(port, router):
    """An answer of 400 is the caller's."""
    router.statuses += [400]

    assert status_of(port, "POST", "/v1/chat/completions", b"{}") == 400
    assert len(router.came) == 1


def test_a_stream_is_passed_on_as_it_comes(port, router):
    """The first piece is read while the router still waits to send the second."""
    with calling(port, "POST", "/v1/completions", b"stream") as answer:
        assert answer.read(1) == b"1"
        router.read.set()

        assert answer.read() == b"2"

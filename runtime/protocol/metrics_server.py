"""The metrics port of any process of the runtime: `/metrics` for dashboards, `/readyz` and `/health` for kubelets.

A rank has no other HTTP port, so kubelets ask here whether it is ready and whether it still works. The callbacks
`is_ready` and `is_moving` decide that. A rank shows its epoch here too (`pages`).

Any other path is a 404: a probe with a wrong path must not be told that all is well.

Clients of the port cannot cost the process much: connections have a time limit, their number is limited, and errors of
the other side are not logged.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from socketserver import ThreadingMixIn
from types import MappingProxyType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder

from runtime.errors import RuntimeFailure
from runtime.protocol.sockets import check_address

__all__ = ["MAX_CONNECTIONS", "serve_metrics", "target_path"]

PAUSE_S = 0.1  # assumed: scrapes and probes wait for seconds
LONGEST_S = 10.0  # assumed, of a connection: by default Prometheus gives up a scrape after as long
MAX_CONNECTIONS = 16  # assumed: a few dashboards, and the kubelet; a process may have as few as 64 descriptors
METRICS = "/metrics"
BACKLOG = 128  # assumed: connections that may come at once, before the first is accepted


@contextmanager
def serve_metrics(
    registry: CollectorRegistry,
    address: str,
    port: int,
    is_ready: Callable[[], bool] = lambda: True,
    is_moving: Callable[[], bool] = lambda: True,
    pages: Mapping[str, Callable[[], bytes]] = MappingProxyType({}),
) -> Iterator[None]:
    """Serve `registry` on a thread of its own, while the context lasts. Raises RuntimeFailure if the port is taken.

    `/readyz` answers by `is_ready`, `/health` by `is_moving`. `pages` maps a path to a function that makes its JSON.
    Until `is_ready`, the path answers 503 and the function is not called.
    """
    try:
        server_class = _Server if check_address(address) == 4 else _Ipv6Server
        server = make_server(
            address,
            port,
            _application(registry, {"/readyz": (is_ready, "ready"), "/health": (is_moving, "moving")}, pages),
            server_class,
            _QuietHandler,
        )
    except OSError as error:
        reason = str(error.strerror).lower()
        raise RuntimeFailure(f"cannot listen on {address}:{port} (metrics): {reason}") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def target_path(target: str) -> str:
    """Return the path of a request's target, which may be a whole URL if a proxy sent it (RFC 9112, section 3.2.2)."""
    scheme, separator, rest = target.partition("://")
    is_url = separator and scheme.lower() in ("http", "https")
    return "/" + rest.partition("/")[2] if is_url else target


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each request on a thread, so that a slow scrape does not keep a probe waiting.

    It ends connections that take too long, and the oldest ones when there are too many. So a new probe is answered
    however many idle connections there are.
    """

    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, *arguments: Any) -> None:
        self._began: dict[socket.socket, float] = {}  # when each connection began, the oldest first
        super().__init__(*arguments)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection.

        If no descriptor is left, pause: the connection stays pending, and the server would spin otherwise.
        """
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to serve a connection."""
        known = list(self._began)
        for oldest in known[: max(0, len(known) + 1 - MAX_CONNECTIONS)]:
            self._end(oldest)
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that take too long. The server calls this twice a second, and after each new connection."""
        longest_ago = time.monotonic() - LONGEST_S
        for request in [each for each, began in list(self._began.items()) if began < longest_ago]:
            self._end(request)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that was served or that `service_actions` ended."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show the traceback of a bug, but nothing for a broken connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _end(self, request: socket.socket) -> None:
        """Shut the connection down. The thread that serves it then fails to read or write, and closes it."""
        self._began.pop(request, None)
        with suppress(OSError):  # it has just ended by itself
            request.shutdown(socket.SHUT_RDWR)


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing: a line for each probe would drown the log."""


def _application(
    registry: CollectorRegistry,
    probes: Mapping[str, tuple[Callable[[], bool], str]],
    pages: Mapping[str, Callable[[], bytes]],
) -> Callable[..., Any]:
    """Return the application that answers `probes` (path -> check and its name), `pages` and /metrics."""
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = target_path(environ["PATH_INFO"])
        if path == METRICS:
            return metrics(_drop_unreadable_accept(environ), start_response)
        is_ready, _ = probes["/readyz"]
        if path in pages and is_ready():
            start_response("200 OK", [("Content-Type", "application/json")])
            return [pages[path]()]
        if path in pages:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, "not ready"
        elif path in probes:
            is_so, word = probes[path]
            status, text = (HTTPStatus.OK, word) if is_so() else (HTTPStatus.SERVICE_UNAVAILABLE, f"not {word}")
        else:
            status, text = HTTPStatus.NOT_FOUND, f"not found; there are {', '.join((METRICS, *probes, *pages))}"
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain")])
        return [f"{text}\n".encode()]

    return answer


def _drop_unreadable_accept(environ: dict[str, Any]) -> dict[str, Any]:
    """Return the WSGI `environ` without an Accept header that prometheus_client cannot read.

    An example is a header with a version that is no number.
    """
    try:
        choose_encoder(environ.get("HTTP_ACCEPT", ""))
    except (TypeError, ValueError):
        return {key: value for key, value in environ.items() if key != "HTTP_ACCEPT"}
    return environ

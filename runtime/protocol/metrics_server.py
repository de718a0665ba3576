"""The metrics port of any process of the runtime: `/metrics` for dashboards, `/readyz` and `/health` for kubelets.

A rank has no other HTTP port, so whether it is ready, and whether it still moves, is asked here. It decides neither:
`is_ready` and `is_moving` do.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from runtime.errors import RuntimeFailure
from runtime.protocol.sockets import check_address

__all__ = ["serve_metrics"]


@contextmanager
def serve_metrics(
    registry: CollectorRegistry,
    address: str,
    port: int,
    is_ready: Callable[[], bool] = lambda: True,
    is_moving: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Serve `registry` on a thread of its own. Raise RuntimeFailure when the port is not available."""
    try:
        server_class = _Server if check_address(address) == 4 else _Ipv6Server
        server = make_server(
            address,
            port,
            _application(registry, {"/readyz": (is_ready, "ready"), "/health": (is_moving, "moving")}),
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


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each request on a thread, so that a slow scrape does not keep a probe waiting."""

    daemon_threads = True


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing: a line for each probe would drown the log."""


def _application(
    registry: CollectorRegistry, probes: Mapping[str, tuple[Callable[[], bool], str]]
) -> Callable[..., Any]:
    """Answer `probes`, path -> question and word, and everything else with the metrics."""
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] not in probes:
            return metrics(environ, start_response)
        is_so, word = probes[environ["PATH_INFO"]]
        status, text = (HTTPStatus.OK, word) if is_so() else (HTTPStatus.SERVICE_UNAVAILABLE, f"not {word}")
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain")])
        return [f"{text}\n".encode()]

    return answer

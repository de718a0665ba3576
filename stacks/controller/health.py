"""The controller's probes: whether it still works, and whether its last look at the cluster went well.

    /healthz   200 if a look has ended in the last five minutes, successful or not
    /readyz    200 if the last look went well, even if another controller follows the deployment

It listens on the pod's own address, where NetworkPolicies let nobody in but the kubelet of the node.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from planner.facts.names import Ports
from stacks.kube.errors import ProviderError

__all__ = ["STALLED_S", "Health", "serve_probes"]

STALLED_S = 300.0  # assumed: three times what the first look takes where it marks 2,000 nodes at 50 ms each
LONGEST_S = 5.0  # assumed, for one connection
PAUSE_S = 0.1  # assumed: a probe waits for a second


class Health:
    """Whether the controller's last round went well, and when it ended. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ended_at = clock()
        self._went_well = False

    def note_end(self, *, went_well: bool) -> None:
        """Record that a round has ended now, and whether it `went_well`."""
        self._ended_at, self._went_well = self._clock(), went_well

    def answer(self, path: str) -> HTTPStatus:
        """Return the HTTP status that answers a probe of `path`."""
        moves = self._clock() - self._ended_at < STALLED_S
        said = {"/healthz": moves, "/readyz": moves and self._went_well}.get(path)
        if said is None:
            return HTTPStatus.NOT_FOUND
        return HTTPStatus.OK if said else HTTPStatus.SERVICE_UNAVAILABLE


@contextmanager
def serve_probes(health: Health, address: str, port: int = Ports.HEALTH) -> Iterator[int]:
    """Answer probes on a thread, and yield the port in use (for port 0 the kernel chooses one).

    Raises ProviderError if the port is taken.
    """
    try:
        server = (_Server6 if ":" in address else _Server)((address, port), _handler(health))
    except OSError as error:
        raise ProviderError(f"cannot listen on {address}, port {port}: {error}; give the pod's own address") from None
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. If no descriptor is left, pause: it stays pending, and the loop would spin otherwise."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_S)
            raise


class _Server6(_Server):
    address_family = socket.AF_INET6


def _handler(health: Health) -> type[BaseHTTPRequestHandler]:
    """Return a handler class that serves `health`."""

    class Handler(BaseHTTPRequestHandler):
        timeout = LONGEST_S

        def do_GET(self) -> None:
            self.send_response(health.answer(self.path))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing: a kubelet asks every few seconds."""

    return Handler

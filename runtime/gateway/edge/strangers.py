"""Bounds the number of connections at the ranks' port that have not said Hello yet ("strangers").

When there are too many, the oldest connection of the host that has most is ended. So a machine that connects without
end only ends its own connections, and a rank elsewhere can still say Hello.
If ranks show certificates, a connection is a stranger from its first byte to its Hello, handshake included. Each
handshake is a task of its own, so a slow one delays nobody else.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable

from runtime.gateway.edge.connections import peer_name
from runtime.protocol.complaints import Complaints
from runtime.protocol.tls import HANDSHAKE_S, SHUTDOWN_S, Credentials, explain_tls_failure

__all__ = ["Handshakes", "Strangers"]

MAX_STRANGERS = 16  # assumed: a rank says Hello in its first packet, and the gateway may have only 64 descriptors

log = logging.getLogger(__name__)


class Strangers:
    """The connections at the ranks' port that have not said Hello yet, the oldest first."""

    def __init__(self) -> None:
        self._known: dict[
            object, tuple[str, Callable[[], object]]
        ] = {}  # stranger -> its host, and a function that closes its connection
        self._complaints = Complaints(log.warning)

    @property
    def num_free(self) -> int:
        """The number of strangers that can be accepted without ending another's connection."""
        return max(MAX_STRANGERS - len(self._known), 0)

    def make_room(self) -> bool:
        """Make room for one more connection. Always return True, since some stranger may always be ended (see `Guard`).

        If there is no room, end the oldest stranger of the host that has most strangers.
        """
        if not self.num_free:
            ((crowd, _),) = Counter(host for host, _ in self._known.values()).most_common(1)
            oldest = next(stranger for stranger, (host, _) in self._known.items() if host == crowd)
            _, end = self._known.pop(oldest)
            end()
        return True

    def complain(self, sentence: str) -> None:
        """Log a complaint about a connection, at a bounded rate."""
        self._complaints(sentence)

    def add(self, stranger: object, host: str, end: Callable[[], object]) -> None:
        """Add a stranger who connects from `host`. Calling `end` ends the connection."""
        self._known[stranger] = host, end

    def forget(self, stranger: object) -> None:
        """Remove a connection that has said Hello or has ended."""
        self._known.pop(stranger, None)


class Handshakes:
    """Does the TLS handshakes of callers who must show a certificate, each in a task of its own."""

    def __init__(
        self, make: Callable[[], asyncio.BaseProtocol], credentials: Credentials, strangers: Strangers
    ) -> None:
        self._make, self._credentials, self._strangers = make, credentials, strangers
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, caller: socket.socket) -> None:
        """Begin the handshake with a caller in a task, without waiting for it."""
        task = asyncio.get_running_loop().create_task(self._shake_hands(caller))
        self._strangers.add(task, _peer_host(caller), task.cancel)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def _shake_hands(self, caller: socket.socket) -> None:
        who = peer_name(caller)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                caller,
                ssl=self._credentials.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:
            self._strangers.complain(
                f"closed the registry connection of {who}: no handshake: {explain_tls_failure(error)}"
            )

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.forget(task)


def _peer_host(caller: socket.socket) -> str:
    """Return the caller's address, or "" if it has left."""
    try:
        return str(caller.getpeername()[0])
    except OSError:
        return ""

"""The connections at the ranks' port that have not said who they are: bounded in number, the oldest ended first.

Where ranks show certificates, a connection is a stranger from its first byte to its Hello, the handshake included. Each
handshake is a task of its own, so one that goes slowly keeps nobody else waiting.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from runtime.gateway.connections import shown
from runtime.protocol.complaints import Complaints
from runtime.protocol.tls import HANDSHAKE_S, SHUTDOWN_S, Credentials, why_refused

__all__ = ["Handshakes", "Strangers"]

MAX_STRANGERS = 16  # assumed: a rank says Hello with its first packet, and the gateway may have 64 descriptors

log = logging.getLogger("runtime.gateway.registry")  # as users know the port


class Strangers:
    """Those that are connected now, the oldest first."""

    def __init__(self) -> None:
        self._ends: dict[object, Callable[[], object]] = {}
        self._complaints = Complaints(log.warning)

    @property
    def num_free(self) -> int:
        """The strangers for whom no other need be ended."""
        return max(MAX_STRANGERS - len(self._ends), 0)

    def make_room(self) -> bool:
        """Return True, after ending the oldest when there are many."""
        if not self.num_free:
            end = self._ends.pop(next(iter(self._ends)))
            end()
        return True

    def complain(self, sentence: str) -> None:
        """Say something of a connection, at a bounded rate."""
        self._complaints(sentence)

    def add(self, stranger: object, end: Callable[[], object]) -> None:
        """Count a stranger, whom `end()` ends."""
        self._ends[stranger] = end

    def forget(self, stranger: object) -> None:
        """Count somebody no more, who is known now or gone."""
        self._ends.pop(stranger, None)


class Handshakes:
    """Takes callers who must show a certificate, each in a task of its own."""

    def __init__(
        self, make: Callable[[], asyncio.BaseProtocol], credentials: Credentials, strangers: Strangers
    ) -> None:
        self._make, self._credentials, self._strangers = make, credentials, strangers
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, caller: socket.socket) -> None:
        """Begin the handshake with a caller, and return at once."""
        task = asyncio.get_running_loop().create_task(self._shake_hands(caller))
        self._strangers.add(task, task.cancel)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def _shake_hands(self, caller: socket.socket) -> None:
        who = shown(caller)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                caller,
                ssl=self._credentials.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:
            self._strangers.complain(f"closed the registry connection of {who}: no handshake: {why_refused(error)}")

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.forget(task)

"""The clients' connections: how many there may be, and how long each may wait for its client.

Why it exists: uvicorn accepts every connection and lets most waits last for ever. A few dozen clients that sent nothing
used to hold every descriptor, and asyncio's own acceptor then logs an error for each place of its backlog.

A connection is always in exactly one wait:

    for             until                                    at most
    a request       its head is complete                     head_s, from its first byte or the connection's
    the next one    the first byte of its head               next_s
    a body          it is complete                           body_s
    the gateway     the answer is computed                   no limit here: ranks have their own
    its reader      its client reads what was written        reader_s
    its end         a client that was refused hangs up       last_s

A connection that waits for its client takes nobody else's place. When all places are taken, the next client gets the
place of the connection that has waited longest, of those without an answer. If all have answers, it gets the place of
the client that has read nothing for the longest time, if that is over STALLED_S. Otherwise it is refused.
It does not know HTTP (`http1.py` does) or limit a body's size (`client.py` does).

Sources: nginx, `ngx_http_core_module`, for next_s (`keepalive_timeout`), last_s and the kinds of waits; CPython issue
151615 for asyncio's acceptor.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from typing import Protocol

import msgspec

from runtime.gateway.edge.http_errors import ApiError, too_many_connections
from runtime.protocol.complaints import Complaints
from runtime.protocol.frames import FRAME_TIMEOUT_S
from runtime.protocol.metrics_server import MAX_CONNECTIONS as METRICS_CONNECTIONS

__all__ = [
    "Connection",
    "Connections",
    "Guard",
    "Wait",
    "Waits",
    "accept_connections",
    "connect_client",
    "encode_refusal",
    "peer_name",
    "raise_connection_limit",
    "serve_clients",
]

MAX_CONNECTIONS = 8192  # assumed: half a GiB, if each has a slow reader with 64 KiB unsent
BACKLOG = 2048  # uvicorn's; the kernel queues as many that are not accepted yet
ACCEPTED_AT_ONCE = 64  # assumed
STALLED_S = 2.0  # assumed: a slow line carries 64 KiB in that time, and probes come every few seconds
SWEEP_S = 0.5
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger(__name__)


class Wait(Enum):
    """What a connection waits for. The value is the complaint in the log if the wait is too long."""

    REQUEST = "its request did not come"
    NEXT = "it was idle"
    BODY = "its body did not come"
    GATEWAY = ""
    READER = "it does not read its answer"
    END = "it was refused and did not hang up"


UNLOGGED = (Wait.NEXT, Wait.END)  # waits that end without a line in the log


@dataclass(frozen=True)
class Waits:
    """The longest time in seconds that a connection may spend in each kind of wait."""

    head_s: float = 10.0  # assumed: a head is one packet or a few
    next_s: float = 75.0  # nginx's keepalive_timeout
    # assumed: the routes answer 408 before that, this is for those that do not read
    body_s: float = FRAME_TIMEOUT_S + 5
    reader_s: float = FRAME_TIMEOUT_S
    last_s: float = 5.0  # nginx's lingering_timeout

    def limit_s(self, wait: Wait) -> float | None:
        """Return the longest time in seconds for this wait; None if there is no limit."""
        limits_s = {
            Wait.REQUEST: self.head_s,
            Wait.NEXT: self.next_s,
            Wait.BODY: self.body_s,
            Wait.READER: self.reader_s,
            Wait.END: self.last_s,
        }
        return limits_s.get(wait)


class Connection(Protocol):
    """The part of a client's connection that this module needs."""

    @property
    def peer(self) -> str:
        """Return the client's address and port."""
        ...

    def current_wait(self) -> Wait:
        """Return what the connection waits for now."""
        ...

    def end(self, wait: Wait) -> None:
        """End the connection, because this wait was too long."""
        ...


class Guard(Protocol):
    """Bounds the number of connections at a port by ending old ones."""

    @property
    def num_free(self) -> int:
        """The number of connections that can be accepted without ending others."""
        ...

    def make_room(self) -> bool:
        """Make room for one more connection, if need be by ending another. Return whether there is room."""
        ...

    def complain(self, sentence: str) -> None:
        """Log a complaint about a connection, at a bounded rate."""
        ...


class Connections:
    """The open connections, at most `max_connections` of them."""

    def __init__(self, max_connections: int, waits: Waits = Waits()) -> None:
        self.max_connections = max_connections
        self._complaints = Complaints(log.warning)
        self._waits = waits
        self._wait_starts: dict[Connection, tuple[Wait, float]] = {}  # the longest wait first

    def __len__(self) -> int:
        return len(self._wait_starts)

    def add(self, connection: Connection) -> None:
        """Add a connection that has just been opened."""
        self._wait_starts[connection] = connection.current_wait(), time.monotonic()

    def note(self, connection: Connection, *, restarts: bool = False) -> None:
        """Record what the connection waits for now.

        The time of the wait begins anew if the connection waits for something else now, or if the wait `restarts`.
        """
        wait = connection.current_wait()
        limits_s = self._wait_starts.get(connection)
        if limits_s is not None and (restarts or limits_s[0] is not wait):
            del self._wait_starts[connection]  # it goes to the end
            self.add(connection)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._wait_starts.pop(connection, None)

    def complain(self, sentence: str) -> None:
        """Log a complaint about a connection, at a bounded rate."""
        self._complaints(sentence)

    @property
    def num_free(self) -> int:
        """The number of connections that can be accepted without ending others."""
        return max(self.max_connections - len(self._wait_starts), 0)

    def make_room(self) -> bool:
        """Make room for one more connection, if need be by ending the longest wait. Return whether there is room."""
        if self.num_free:
            return True
        connection = next(chain(self._find_unanswered(), self._find_stalled()), None)
        if connection is None:
            return False
        wait, _ = self._wait_starts[connection]
        self._end(connection, wait, f"{wait.value}, and all {self.max_connections:,} connections are taken")
        return True

    def sweep(self) -> None:
        """End the connections that have waited too long."""
        for connection in list(self._wait_starts):
            self.note(connection)  # a connection does not report that it is closing
            wait, began = self._wait_starts[connection]
            longest_s = self._waits.limit_s(wait)
            if longest_s is not None and time.monotonic() - began > longest_s:
                self._end(connection, wait, None if wait in UNLOGGED else f"{wait.value} within {longest_s:g} s")

    def _find_unanswered(self) -> Iterator[Connection]:
        return (one for one, (wait, _) in self._wait_starts.items() if wait not in (Wait.GATEWAY, Wait.READER))

    def _find_stalled(self) -> Iterator[Connection]:
        before = time.monotonic() - STALLED_S
        return (one for one, (wait, began) in self._wait_starts.items() if wait is Wait.READER and began < before)

    def _end(self, connection: Connection, wait: Wait, complaint: str | None) -> None:
        if complaint is not None:
            self.complain(f"closed the connection of {connection.peer}: {complaint}")
        self.forget(connection)
        connection.end(wait)


def raise_connection_limit() -> int:
    """Raise the limit of open files to the most that the system allows.

    Return how many connections clients may have. Half of the free descriptors are reserved for the ranks' connections.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    num_open = len(os.listdir("/proc/self/fd"))
    free = (2**20 if hard == resource.RLIM_INFINITY else hard) - num_open
    return min(max((free - METRICS_CONNECTIONS) // 2, 1), MAX_CONNECTIONS)


async def serve_clients(
    listener: socket.socket, connections: Connections, make: Callable[[], asyncio.BaseProtocol]
) -> None:
    """Accept clients' connections and end those that wait too long, until cancelled. Then close the listener."""
    sweeping = asyncio.get_running_loop().create_task(_sweep(connections))
    try:
        await accept_connections(listener, connections, partial(connect_client, make))
    finally:
        sweeping.cancel()


async def accept_connections(
    listener: socket.socket, guard: Guard, take: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Accept connections within the guard's bound and pass each to `take`, until cancelled. Then close the listener."""
    listener.setblocking(False)
    listener.listen(BACKLOG)
    try:
        while True:
            clients = await _accept(listener, guard)
            if clients and not guard.make_room():
                (refused,) = clients  # without free places, clients are accepted one at a time
                _refuse(refused, guard)
            else:
                await asyncio.gather(*(take(client) for client in clients))
    finally:
        listener.close()


def encode_refusal(error: ApiError) -> bytes:
    """Return an error as an HTTP answer, after which the client's connection is closed."""
    body = msgspec.json.encode(error.body())
    lines = [f"HTTP/1.1 {error.status} {error.code}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (error.headers() | {"Connection": "close"}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def connect_client(make: Callable[[], asyncio.BaseProtocol], client: socket.socket) -> None:
    """Give a client's connection to the protocol that `make()` returns."""
    with suppress(OSError):  # the client has left already
        await asyncio.get_running_loop().connect_accepted_socket(make, client)


def peer_name(client: socket.socket) -> str:
    """Return a client's address and port, for the log."""
    try:
        host, port, *_ = client.getpeername()
    except OSError:
        return "a client"
    return f"{host}:{port}"


async def _accept(listener: socket.socket, guard: Guard) -> list[socket.socket]:
    """Wait for a client. Return its socket and the sockets of other waiting clients, as many as there is room for.

    The list is empty if accepting fails. Several clients are accepted at once, because a connection takes some turns of
    the event loop, and a busy loop's turns are long.
    """
    try:
        clients = [(await asyncio.get_running_loop().sock_accept(listener))[0]]
    except OSError as error:
        if error.errno in EXHAUSTED:
            guard.complain(f"cannot take connections: {str(error.strerror).lower()}")
            await asyncio.sleep(SWEEP_S)
        return []
    with suppress(OSError):  # nobody else waits, or no descriptor is left; the next call will report that
        while len(clients) < min(guard.num_free, ACCEPTED_AT_ONCE):
            clients.append(listener.accept()[0])
    return clients


def _refuse(client: socket.socket, guard: Guard) -> None:
    """Refuse a client for which there is no room, with an answer if that can be sent without waiting."""
    guard.complain(f"refused {peer_name(client)}: every connection is being answered")
    with client, suppress(OSError):
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.recv(2**16)  # closing a socket with unread input makes the kernel drop our answer
        client.send(encode_refusal(too_many_connections()))
        client.shutdown(socket.SHUT_WR)


async def _sweep(connections: Connections) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        connections.sweep()

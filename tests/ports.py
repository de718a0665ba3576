"""Ports, and networks of loopback, for servers that a test starts. Ports are below those of outgoing connections.

A port that the kernel chose (port 0) is of the range that any connection may get a moment later, before the server that
it was meant for listens. Processes that share the tests draw from ports of their own, so that none takes what
another has just drawn.
"""

import contextlib
import os
import random
import socket

__all__ = ["free_port", "free_ports", "own_network"]

LOOPBACK = "127.0.0.1"
OURS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
NUM_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
BELOW_EPHEMERAL = range(10_000 + OURS, 32_000, NUM_PROCESSES)  # Linux gives connections ports from 32,768 on
NETWORKS = range(100, 250)  # of loopback, 127.N.0.0
HOLDING_PORT = 9_999  # nothing is served there
_held: list[socket.socket] = []


def free_port(*addresses: str) -> int:
    """Return a TCP port that nobody listens on at any of `addresses`, LOOPBACK unless told."""
    while True:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for address in addresses or (LOOPBACK,):
                held.enter_context(socket.create_server((address, port)))
            return port


def free_ports(count: int) -> list[int]:
    """Return so many different ones."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


def own_network() -> str:
    """Return the beginning, `127.N`, of a network of loopback that no other process of tests has.

    A bound socket, which never listens, holds it until this process ends.
    """
    for number in random.SystemRandom().sample(NETWORKS, len(NETWORKS)):
        holding = socket.socket()
        try:
            holding.bind((f"127.{number}.255.254", HOLDING_PORT))
        except OSError:
            holding.close()
        else:
            _held.append(holding)
            return f"127.{number}"
    raise RuntimeError(f"{len(NETWORKS)} processes of tests run already")

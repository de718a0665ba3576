"""Ports for servers that a test starts: below those that the kernel gives to outgoing connections.

A port that the kernel chose (port 0) is of the range that any connection may get a moment later, before the server that
it was meant for listens. Processes that share the tests draw from ports of their own, so that none takes what
another has just drawn.
"""

import contextlib
import os
import random
import socket

__all__ = ["free_port", "free_ports"]

LOOPBACK = "127.0.0.1"
OURS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
NUM_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
BELOW_EPHEMERAL = range(10_000 + OURS, 32_000, NUM_PROCESSES)  # Linux gives connections ports from 32,768 on


def free_port(address: str = LOOPBACK) -> int:
    """Return a TCP port of `address` that nobody listens on."""
    while True:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            return port


def free_ports(count: int) -> list[int]:
    """Return so many different ones."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)

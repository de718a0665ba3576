"""What clients have sent, taken in a little at a time, so that those that are costly to read hold nobody up.

Why it exists: h11 takes 20 us for a chunk, of one byte too. Two bodies in such chunks held every stream for 0.4 s,
and more of them would for longer. In each turn of the event loop all connections together are read for TURN_S, one
slice of each after another; what is left waits for the next turn, and its connection sends no more until then.
It does not know what is said (`http1.py` does), or limit its size.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

__all__ = ["SLICE_BYTES", "InputTurns", "Reader"]

SLICE_BYTES = 2**10  # measured: in chunks of one byte, 2 to 4 ms
TURN_S = 0.005  # assumed: a fraction of a decode step


class Reader(Protocol):
    """A connection that has something to take in."""

    def take_slice(self) -> bool:
        """Take in the next SLICE_BYTES; return whether there is more."""
        ...


class InputTurns:
    """Those that have something to take in, in the order of their turns."""

    def __init__(self) -> None:
        self._waiting: deque[Reader] = deque()
        self._is_called = False

    def add(self, reader: Reader) -> None:
        """Let `reader`, which does not wait yet, take in what it has, soon."""
        self._waiting.append(reader)
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if self._waiting and not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_called = False
        until = time.monotonic() + TURN_S
        try:
            while self._waiting:
                reader = self._waiting.popleft()
                if reader.take_slice():
                    self._waiting.append(reader)
                if time.monotonic() >= until:
                    break
        finally:
            self._schedule_turn()  # one that raises costs the others nothing

"""Parse clients' input a little at a time, so that input that is slow to parse holds nobody up.

Why it exists: h11 takes 20 us for a chunk, even of one byte. Two bodies in such chunks stopped every stream for 0.4 s.
In each turn of the event loop, all connections together get TURN_S: one slice of each after another. What is left waits
for the next turn, and its connection is not read until then.
It does not parse (`http1.py` does), and it does not limit sizes.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

__all__ = ["SLICE_BYTES", "InputTurns", "Reader"]

SLICE_BYTES = 2**10  # measured: in chunks of one byte, 2 to 4 ms
TURN_S = 0.005  # assumed: a fraction of a decode step


class Reader(Protocol):
    """A connection with input to parse."""

    def take_slice(self) -> bool:
        """Parse the next SLICE_BYTES of input. Return whether there is more."""
        ...


class InputTurns:
    """The connections with input to parse, in the order of their turns."""

    def __init__(self) -> None:
        self._waiting: deque[Reader] = deque()
        self._is_called = False

    def add(self, reader: Reader) -> None:
        """Add a reader that is not waiting for a turn yet. It gets its turn soon."""
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
            self._schedule_turn()  # a reader that raises does not stop the others

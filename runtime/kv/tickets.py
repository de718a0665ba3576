"""One-time tickets for KV: whoever brings a request's KV shows that the gateway sent it.

    gateway --Expect(request, ticket)--> decode rank       on their control connection
    gateway --Prefill(..., ticket)-----> prefill rank --Offer(request, ticket)--> decode rank

A ticket is 128 random bits, of one request at one pair of ranks. It is taken once: a replayed one is as unknown as a
guessed one. It ends with its request, or after `LIFETIME_S`.

The two ways promise no order, so an Offer may come before its ticket. It waits `WAIT_S` for it, and few may wait.
"""

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Tickets"]

LIFETIME_S = 600.0  # assumed: a prompt of 128k tokens behind a long queue has begun by then
WAIT_S = 5.0  # assumed: two lines of one gateway, written one after the other, are not further apart on a busy machine
MAX_WAITING = 64  # assumed: of the connections, so that a scanner's do not all stay for `WAIT_S`


@dataclass(frozen=True)
class _Issued:
    ticket: bytes
    until: float


class Tickets:
    """The tickets of requests whose KV is expected, at most `max_tickets`. Used from one event loop."""

    def __init__(self, max_tickets: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_tickets, self._clock = max_tickets, clock
        self._issued: dict[str, _Issued] = {}  # request id -> its ticket, the oldest first
        self._awaited: dict[str, asyncio.Future[None]] = {}  # by request

    def issue(self, request_id: str, ticket: str) -> None:
        """Admit a request's KV once, with this ticket. If there are too many tickets, the oldest are withdrawn."""
        self._issued.pop(request_id, None)
        self._issued[request_id] = _Issued(ticket.encode(), self._clock() + LIFETIME_S)
        while len(self._issued) > self._max_tickets or self._is_expired(next(iter(self._issued))):
            del self._issued[next(iter(self._issued))]
        if (awaited := self._awaited.get(request_id)) is not None and not awaited.done():
            awaited.set_result(None)

    def withdraw(self, request_id: str) -> None:
        """Withdraw a request's ticket, so that its KV is no longer accepted."""
        self._issued.pop(request_id, None)

    async def redeem(self, request_id: str, ticket: str) -> bool:
        """Use up a request's ticket. Return whether `ticket` is the right one and has not expired.

        If the request is unknown, wait a while for it to be announced. A wrong ticket does not use up the right one,
        which may still come.
        """
        if request_id not in self._issued:
            await self._wait_for(request_id)
        issued = self._issued.get(request_id)
        if issued is None or self._is_expired(request_id) or not hmac.compare_digest(issued.ticket, ticket.encode()):
            return False
        del self._issued[request_id]
        return True

    def _is_expired(self, request_id: str) -> bool:
        return self._issued[request_id].until <= self._clock()

    async def _wait_for(self, request_id: str) -> None:
        if request_id in self._awaited or len(self._awaited) >= MAX_WAITING:
            return
        self._awaited[request_id] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({self._awaited[request_id]}, timeout=WAIT_S)
        finally:
            del self._awaited[request_id]

"""The queue of requests that lost a rank and wait to resume at other ranks.

    a rank is lost -> its requests join this queue -> other ranks are ready and have room -> they go on there

These requests were admitted before (`admission.py`), so they go first: a new request gets the room that they leave.
Each waits as long as the launch file allows, then it fails. What a request sends to its next ranks is the business of
`core/resumption.py`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from runtime.gateway.ranks.rank_load import RequestSize
from runtime.gateway.ranks.registry import SMALLEST, Registry
from runtime.gateway.telemetry.metrics import GatewayMetrics

__all__ = ["ResumptionQueue"]

FIRST_PAUSE_S = 0.1  # assumed: a prefill rank may notice that its decode rank is gone before the gateway does
RETRY_S = 0.05


@dataclass(eq=False)
class _Waiting:
    """A request that waits to resume. The times are of the event loop's clock."""

    try_to_resume: Callable[[], bool]
    give_up: Callable[[str], None]
    not_before: float
    until: float


class ResumptionQueue:
    """The gateway's queue of requests that lost a rank. The requests resume in the order in which they joined."""

    def __init__(self, registry: Registry, metrics: GatewayMetrics, wait_s: float) -> None:
        self.registry = registry
        self._metrics, self._wait_s = metrics, wait_s
        self._queue: dict[_Waiting, None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._close_reason: str | None = None

    def room(self, size: RequestSize = SMALLEST) -> int | None:
        """Return how many more requests of this size the ranks take, beyond those in this queue.

        None while a phase has no ready unit.
        """
        room = self.registry.room(size)
        return None if room is None else max(0, room - len(self._queue))

    def leaves_room(self) -> bool:
        """Return whether ranks have room for a new request beyond the requests in this queue, which may be empty."""
        return not self._queue or bool(self.room())

    def join(
        self, try_to_resume: Callable[[], bool], give_up: Callable[[str], None], num_resumptions: int
    ) -> Callable[[], None]:
        """Queue a request. Return a function by which the request leaves the queue.

        `try_to_resume` is called until it succeeds; after the timeout, `give_up` is called with a reason. A request
        that has resumed before, `num_resumptions` times, waits longer before its first try, because the fault that
        broke a handover may take a while to be noticed.
        """
        not_before = asyncio.get_running_loop().time() + FIRST_PAUSE_S * 2**num_resumptions
        waiting = _Waiting(try_to_resume, give_up, not_before, not_before + self._wait_s)
        if self._close_reason is not None:
            give_up(self._close_reason)
            return lambda: None
        self._queue[waiting] = None
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return lambda: self._queue.pop(waiting, None)

    def close(self, reason: str) -> None:
        """Fail the requests that wait now, and those that come later."""
        self._close_reason = reason
        for waiting in list(self._queue):
            waiting.give_up(reason)
        self._queue.clear()

    async def _serve(self) -> None:
        while self._queue:
            now = asyncio.get_running_loop().time()
            for waiting in [waiting for waiting in self._queue if waiting.not_before <= now]:
                if waiting not in self._queue:
                    continue  # the request has left the queue meanwhile
                if waiting.try_to_resume():
                    del self._queue[waiting]
                    self._metrics.resumed.inc()
                elif waiting not in self._queue:
                    continue  # the request was given up
                elif waiting.until <= now:
                    del self._queue[waiting]
                    waiting.give_up(f"no ranks could go on with it within {self._wait_s:g} s")
            await asyncio.sleep(RETRY_S)

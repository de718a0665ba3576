"""Admission to the ranks: admit or refuse a call, and let its requests wait for a fair turn.

    a call -> check(): is there room for all its requests?  no: 429 with Retry-After, before its prompts are encoded
           -> join(): each request waits in a `fair_queue.py` -> its turn has come and ranks have room -> sent

A request waits here and not at a rank, because a rank serves requests in the order in which they came. There, a caller
who sent many would hold up everybody. A rank gets the requests that it has room for and a few more (`num_ahead`), so
that it never waits for the gateway. Prompts are sent only while some rank has less than `prompt_tokens_ahead` to
compute.

The bound: the ranks' `max_queued_requests` are the places in the queue, shared as `fair_queue.py` describes. The time:
a request waits as long as units are ready, and fails when none has been ready for `timeout_s`.
A caller is a key or, without keys, an address. Of an IPv6 address only the first 64 bits count, because a host may
choose the others.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from runtime.gateway.edge.http_errors import overloaded, oversized_call, unavailable
from runtime.gateway.ranks.rank_load import RequestSize
from runtime.gateway.ranks.registry import SMALLEST
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.gateway.tenants.fair_queue import FairQueue, Turn
from runtime.gateway.tenants.resumption_queue import ResumptionQueue

__all__ = ["Admission", "AdmissionQueue", "QueueLimits", "caller_name", "num_ahead"]

AHEAD_PART = 8  # assumed: an eighth of a rank's requests ends while the gateway hears of it and sends more
BATCHES_AHEAD = 2  # one is being computed, one waits
IPV6_PREFIX = 64  # RFC 4291, section 2.5.1: the rest identifies the interface


def num_ahead(max_requests: int, max_queued_requests: int) -> int:
    """Return how many requests to send to a rank beyond the `max_requests` that run there at once.

    They are a fixed part of `max_requests`, but at least one and at most `max_queued_requests`.
    """
    return min(max(max_requests // AHEAD_PART, 1), max_queued_requests)


def caller_name(request: Request) -> str:
    """Return the name by which a request's caller queues: its key's name or, without keys, its address."""
    name: str | None = request.state.account.name
    if name is not None:
        return name
    if request.client is None:
        return ""
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:  # such as the path of a Unix socket
        return str(request.client.host)
    if address.version == 6:
        return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
    return str(address)


@dataclass(frozen=True)
class QueueLimits:
    """The limits of a queue: places for each rank, prompt tokens sent ahead, longest time without ready units."""

    num_queued: int
    prompt_tokens_ahead: int
    timeout_s: float


class Admission:
    """The gateway's two queues: one for answers, which need decode ranks, and one for embeddings, which do not."""

    def __init__(self, resumptions: ResumptionQueue, metrics: GatewayMetrics, waits: QueueLimits) -> None:
        self.resumptions = resumptions
        registry = resumptions.registry
        self.answers = AdmissionQueue(resumptions, metrics, waits, resumptions.room, registry.num_answer_ranks)
        self.embeddings = AdmissionQueue(
            resumptions, metrics, waits, registry.embedding_room, registry.num_prompt_ranks
        )
        registry.call_on_room(self._schedule_start)

    def close(self, reason: str) -> None:
        """Fail the requests that wait now, and those that come later."""
        for queue in (self.answers, self.embeddings):
            queue.close(reason)
        self.resumptions.close(reason)

    def _schedule_start(self) -> None:
        self.answers.schedule_start()
        self.embeddings.schedule_start()


class AdmissionQueue:
    """The requests of one kind that wait for ranks."""

    def __init__(
        self,
        resumptions: ResumptionQueue,
        metrics: GatewayMetrics,
        waits: QueueLimits,
        room_at_ranks: Callable[[RequestSize], int | None],
        num_ranks: Callable[[], int],
    ) -> None:
        self._resumptions, self._registry, self._metrics, self._waits = (
            resumptions,
            resumptions.registry,
            metrics,
            waits,
        )
        self._room_at_ranks, self._num_ranks = room_at_ranks, num_ranks
        self._queue = FairQueue()
        self._waiting: dict[Turn, _Waiting] = {}
        self._is_scheduled = False
        self._give_up_timer: asyncio.TimerHandle | None = None
        self._close_reason: str | None = None

    def check(self, caller: str, num_requests: int, size: RequestSize = SMALLEST) -> None:
        """Raises ApiError if no units are ready, or if there is no room for `num_requests` of at most this size."""
        room = self.room(caller, size)
        if room is None:
            self._metrics.failed.inc(num_requests)
            raise unavailable("no prefill unit and decode unit are ready together, and no mixed unit is")
        if num_requests > room:
            if not self._registry.num_requests() and not len(self._queue):
                raise oversized_call(num_requests, "a caller", room)
            raise overloaded(num_requests, room, self._estimate_wait_s(caller, num_requests - room))

    def room(self, caller: str, size: RequestSize = SMALLEST) -> int | None:
        """Return how many more requests of the caller may come; None while a phase has no ready unit."""
        rank_room = self._room_at_ranks(size)
        if rank_room is None:
            return None
        return self._queue.room(caller, rank_room + self._waits.num_queued * self._num_ranks())

    def join(self, caller: str, cost: float, try_to_start: Callable[[], bool], give_up: Callable[[str], None]) -> Turn:
        """Queue a request of expected work `cost`, which may start at once. The caller must always `end` the turn.

        `try_to_start` sends the request to ranks and returns whether any took it. `give_up` is called with the reason
        if none will take it.
        """
        turn = self._queue.join(caller, cost)
        self._waiting[turn] = _Waiting(try_to_start, give_up)
        if self._close_reason is not None:
            self.close(self._close_reason)
        self._start_queued()
        return turn

    def end(self, turn: Turn, cost: float) -> None:
        """End a request. `cost` is the request's real work if ranks worked on it. A second call does nothing."""
        self._queue.end(turn, cost)
        if self._waiting.pop(turn, None) is not None:
            self.schedule_start()  # the next one may be smaller and fit

    def schedule_start(self) -> None:
        """Start waiting requests in the event loop's next turn, so that all the room that this turn frees counts."""
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_queued)

    def close(self, reason: str) -> None:
        """Fail the requests that wait now, and those that come later."""
        self._close_reason = reason
        self._give_up(reason)

    def _start_queued(self) -> None:
        """Start queued requests in the order of their turns, until ranks take no more."""
        self._is_scheduled = False
        while (turn := self._queue.next_turn()) is not None and self._may_start():
            if not self._waiting[turn].try_to_start():
                break
            self._queue.serve(turn)
            del self._waiting[turn]
        self._watch_timeout()

    def _may_start(self) -> bool:
        """Return whether a rank has little prompt work left, and interrupted requests leave room for a new one."""
        backlog = self._registry.least_prompt_tokens()
        return self._resumptions.leaves_room() and backlog is not None and backlog < self._waits.prompt_tokens_ahead

    def _watch_timeout(self) -> None:
        """Start the timeout when no units are ready for waiting requests, and stop it when some are."""
        is_hopeless = bool(self._waiting) and self._registry.least_prompt_tokens() is None
        if is_hopeless and self._give_up_timer is None:
            reason = f"no units have been ready for {self._waits.timeout_s:g} s"
            self._give_up_timer = asyncio.get_running_loop().call_later(self._waits.timeout_s, self._give_up, reason)
        elif not is_hopeless and self._give_up_timer is not None:
            self._give_up_timer.cancel()
            self._give_up_timer = None

    def _give_up(self, reason: str) -> None:
        self._give_up_timer = None
        for turn, waiting in list(self._waiting.items()):
            self.end(turn, 0)
            waiting.give_up(reason)

    def _estimate_wait_s(self, caller: str, num_missing: int) -> int:
        """Return roughly the seconds until there is room for `num_missing` more of a caller's requests."""
        num_all = self._registry.num_requests() + len(self._queue)
        return self._metrics.pace.wait_s(num_all, num_missing * self._queue.num_callers(caller))


@dataclass(frozen=True)
class _Waiting:
    try_to_start: Callable[[], bool]
    give_up: Callable[[str], None]

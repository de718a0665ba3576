"""Requests that outlive their ranks: when one is lost, its requests go on at others, no token lost or repeated.

    a rank is lost -> its requests stand in line -> ranks are ready and have room -> the prompt and the tokens so far

The gateway has the prompt and every token that it passed on. Whoever goes on computes them again: see `Prefill`. Seed,
penalties and grammar are functions of the tokens, so the answer goes on as it would have.

Bounds: a request resumes `MAX_RESUMPTIONS` times, and waits each time as long as the launch file lets it, at most.
A fault that is the request's own, and not a rank's, is not tried again. An answer is of one model: it does not go on
with other weights than it began with.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runtime.gateway.calls import GenerationRequest
from runtime.gateway.in_flight import InFlightRequest
from runtime.gateway.metrics import GatewayMetrics, RequestClock
from runtime.gateway.rank_connection import Rank
from runtime.gateway.rank_load import RequestSize
from runtime.gateway.registry import LEAST, Registry
from runtime.gateway.tracing import Phase
from runtime.protocol.messages import Failed, PrefixHit, Token

__all__ = ["MAX_RESUMPTIONS", "ResumableRequest", "Resumptions"]

MAX_RESUMPTIONS = 5  # assumed: more than restarts in an answer's time; a request that kills ranks kills five more
FIRST_PAUSE_S = 0.1  # assumed: a prefill rank may notice that its decode rank is gone before the gateway does
ASK_S = 0.05


@dataclass(eq=False)
class _Waiting:
    """A request in line. Times are of the event loop."""

    try_to_go_on: Callable[[], bool]
    give_up: Callable[[str], None]
    not_before: float
    until: float


class Resumptions:
    """The line of requests that lost a rank, one for the gateway: they go on in the order in which they came.

    Whoever stands in it was admitted before, so new requests get what room it leaves.
    """

    def __init__(self, registry: Registry, metrics: GatewayMetrics, wait_s: float) -> None:
        self.registry = registry
        self._metrics, self._wait_s = metrics, wait_s
        self._line: dict[_Waiting, None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._closed: str | None = None

    def room(self, size: RequestSize = LEAST) -> int | None:
        """Return how many more requests of this size may come; None while no unit of a phase is ready."""
        room = self.registry.room(size)
        return None if room is None else max(0, room - len(self._line))

    def leaves_room(self) -> bool:
        """Return whether ranks have room beside whoever stands in the line."""
        return not self._line or bool(self.room())

    def wait(
        self, try_to_go_on: Callable[[], bool], give_up: Callable[[str], None], num_before: int
    ) -> Callable[[], None]:
        """Call `try_to_go_on` until it does, or `give_up` with why it could not in time. Return what leaves the line.

        A request that resumed `num_before` times waits longer each time before it is tried: what hinders a handover may
        take a while to be noticed.
        """
        not_before = asyncio.get_running_loop().time() + FIRST_PAUSE_S * 2**num_before
        waiting = _Waiting(try_to_go_on, give_up, not_before, not_before + self._wait_s)
        if self._closed is not None:
            give_up(self._closed)
            return lambda: None
        self._line[waiting] = None
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return lambda: self._line.pop(waiting, None)

    def close(self, reason: str) -> None:
        """Give up whoever waits, now and later."""
        self._closed = reason
        for waiting in list(self._line):
            waiting.give_up(reason)
        self._line.clear()

    async def _serve(self) -> None:
        while self._line:
            now = asyncio.get_running_loop().time()
            for waiting in [waiting for waiting in self._line if waiting.not_before <= now]:
                if waiting not in self._line:
                    continue  # it was left meanwhile
                if waiting.try_to_go_on():
                    del self._line[waiting]
                    self._metrics.resumed.inc()
                elif waiting not in self._line:
                    continue  # it gave up
                elif waiting.until <= now:
                    del self._line[waiting]
                    waiting.give_up(f"no ranks could go on with it within {self._wait_s:g} s")
            await asyncio.sleep(ASK_S)


class ResumableRequest:
    """One prompt until its last token, at one pair of ranks after another.

    `deliver` gets its tokens in the order the model made them, or why it ended without the last one.
    """

    def __init__(
        self,
        request: GenerationRequest,
        size: RequestSize,
        resumptions: Resumptions,
        clock: RequestClock,
        num_token_ids: int,
        deliver: Callable[[Token | Failed], None],
    ) -> None:
        self.units: dict[str, str] = {}  # that had it, with their digests
        self.num_hit_tokens = 0  # of its prompt, that the ranks of its first token did not compute
        self._request, self._size, self._resumptions, self._clock = request, size, resumptions, clock
        self._num_token_ids, self._deliver = num_token_ids, deliver
        self._generated: list[int] = []
        self._weights: str | None = None  # that these tokens were made with, where ranks say so
        self._num_resumptions = 0
        self._has_ended = False
        self._in_flight: InFlightRequest | None = None
        self._leave_line: Callable[[], None] = lambda: None

    @property
    def phases(self) -> list[Phase]:
        """The phases that have begun and, of the last one, as much as there is; at the last ranks that had it."""
        if self._in_flight is None:
            return []
        first, last = self._clock.first_token, self._clock.last_token
        prefill, decode = (
            partial(Phase, name, rank.hello.unit, rank.hello.rank)
            for name, rank in zip(("prefill", "decode"), self._in_flight.ranks, strict=True)
        )
        if first is None or last is None:
            return [prefill(self._clock.started, time.monotonic())]
        return [prefill(self._clock.started, first), decode(first, last)]

    @property
    def prompt_ids(self) -> list[int]:
        """Its prompt, one list for all choices."""
        return self._request.prompt_ids

    @property
    def num_generated(self) -> int:
        """The tokens that there are."""
        return len(self._generated)

    def try_to_start(self) -> bool:
        """Begin, or go on, at ranks that take it; return whether there are any."""
        ranks = self._resumptions.registry.choose_ranks(self._size_now())
        if ranks is None:
            return False
        if self._generated and ranks[1].loaded_digest != self._weights:
            self.give_up("the weights that it began with are served no more")
            return False
        self._start(*ranks)
        return True

    def give_up(self, reason: str) -> None:
        """Say that the request has failed."""
        self.end()
        self._deliver(Failed("", reason))

    def end(self, *, answered: bool = False) -> None:
        """End the request wherever it is. Ending twice is ending once.

        An answer that ends at a stop string is `answered`, though its ranks know nothing of its end.
        """
        self._has_ended = True
        self._clock.end(answered=answered)
        self._leave_line()
        if self._in_flight is not None:
            self._in_flight.end()

    def _start(self, prefill: Rank, decode: Rank) -> None:
        if not self._generated:
            self.num_hit_tokens = 0
        self.units |= {rank.hello.unit: rank.hello.unit_digest for rank in (prefill, decode)}
        self._weights = decode.loaded_digest
        self._in_flight = InFlightRequest(prefill, decode, self._num_token_ids, self._receive)
        self._in_flight.start(self._request, self._generated, self._size_now())

    def _receive(self, message: PrefixHit | Token | Failed) -> None:
        if isinstance(message, PrefixHit):
            if not self._generated:
                self.num_hit_tokens = message.num_tokens
        elif isinstance(message, Token):
            self._generated.append(message.token_id)
            self._clock.token()
            if message.finish_reason is not None:
                self._has_ended = True
                self._clock.end(answered=True)
            self._deliver(message)
        elif message.may_retry and not self._has_ended and self._num_resumptions < MAX_RESUMPTIONS:
            self._resume(message.reason)
        else:
            self.give_up(message.reason)

    def _resume(self, reason: str) -> None:
        """Stand in line for other ranks."""
        self._num_resumptions += 1
        self._leave_line = self._resumptions.wait(
            self.try_to_start, lambda why: self.give_up(f"{reason}, and {why}"), self._num_resumptions - 1
        )

    def _size_now(self) -> RequestSize:
        """Return its size: tokens that are there are prompt to its next ranks, and at least one is to come."""
        num_generated = len(self._generated)
        return RequestSize(self._size.prompt_tokens + num_generated, max(self._size.new_tokens - num_generated, 1))

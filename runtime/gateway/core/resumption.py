"""Requests that outlive their ranks: when one is lost, its requests go on at others, no token lost or repeated.

    a rank is lost -> its requests stand in line -> ranks are ready and have room -> the prompt and the tokens so far

The gateway has the prompt and every token that it passed on. Whoever goes on computes them again: see `Prefill`. Seed,
penalties and grammar are functions of the tokens, so the answer goes on as it would have.

Bounds: a request resumes `MAX_RESUMPTIONS` times, and waits each time as long as the launch file lets it, at most.
A fault that is the request's own, and not a rank's, is not tried again. An answer is of one model: it does not go on
with other weights than it began with.
"""

import time
from collections.abc import Callable
from functools import partial

from runtime.gateway.core.calls import GenerationRequest
from runtime.gateway.core.in_flight import InFlightRequest
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RequestSize
from runtime.gateway.telemetry.metrics import RequestClock
from runtime.gateway.telemetry.tracing import Phase
from runtime.gateway.tenants.resumption_line import ResumptionLine
from runtime.protocol.messages import Failed, PrefixHit, Token

__all__ = ["MAX_RESUMPTIONS", "ResumableRequest"]

MAX_RESUMPTIONS = 5  # assumed: more than restarts in an answer's time; a request that kills ranks kills five more


class ResumableRequest:
    """One prompt until its last token, at one pair of ranks after another.

    `deliver` gets its tokens in the order the model made them, or why it ended without the last one.
    """

    def __init__(
        self,
        request: GenerationRequest,
        size: RequestSize,
        resumptions: ResumptionLine,
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
        ranks = self._resumptions.registry.choose_ranks(self._current_size())
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
        self._in_flight.start(self._request, self._generated, self._current_size())

    def _receive(self, message: PrefixHit | Token | Failed) -> None:
        if isinstance(message, PrefixHit):
            if not self._generated:
                self.num_hit_tokens = message.num_tokens
        elif isinstance(message, Token):
            self._generated.append(message.token_id)
            self._clock.note_token()
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

    def _current_size(self) -> RequestSize:
        """Return its size: tokens that are there are prompt to its next ranks, and at least one is to come."""
        num_generated = len(self._generated)
        return RequestSize(self._size.prompt_tokens + num_generated, max(self._size.new_tokens - num_generated, 1))

"""Requests that outlive their ranks: they go on at other ranks, and no token is lost or repeated.

    a rank is lost -> its requests join the queue -> ranks are ready and have room -> they get the prompt and the tokens

The gateway has the prompt and every token that it passed on. The next ranks compute these again (see `Prefill`). Seed,
penalties and grammar are functions of the tokens, so the answer goes on as it would have.

Bounds: a request resumes at most `MAX_RESUMPTIONS` times. Each time it waits at most as long as the launch file allows.
A failure that is the request's own fault is not retried. One answer comes from one model: a request does not go on with
different weights from those it began with.
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
from runtime.gateway.tenants.resumption_queue import ResumptionQueue
from runtime.protocol.messages import Failed, PrefixHit, Token

__all__ = ["MAX_RESUMPTIONS", "ResumableRequest"]

MAX_RESUMPTIONS = 5  # assumed: more than restarts in an answer's time; a request that kills ranks kills five more


class ResumableRequest:
    """One prompt until its last token, at one pair of ranks after another.

    `deliver` gets its tokens in the order in which the model made them, or its failure.
    """

    def __init__(
        self,
        request: GenerationRequest,
        size: RequestSize,
        resumptions: ResumptionQueue,
        clock: RequestClock,
        num_token_ids: int,
        deliver: Callable[[Token | Failed], None],
    ) -> None:
        self.units: dict[str, str] = {}  # the units that worked on it -> their digests
        self.num_hit_tokens = 0  # prompt tokens from the cache, at the ranks that made its first token
        self._request, self._size, self._resumptions, self._clock = request, size, resumptions, clock
        self._num_token_ids, self._deliver = num_token_ids, deliver
        self._num_expected_tokens = 0  # of num_hit_tokens, when the prompt was sent
        self._generated: list[int] = []
        self._weights: str | None = None  # digest of the weights that made the tokens, if ranks report one
        self._num_resumptions = 0
        self._has_ended = False
        self._in_flight: InFlightRequest | None = None
        self._leave_queue: Callable[[], None] = lambda: None

    @property
    def phases(self) -> list[Phase]:
        """The phases that the request has gone through at its last pair of ranks.

        Before the first token there is only prefill, with the present time as its end. After that, decode ends with the
        latest token.
        """
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
        """The prompt: one list that all choices share."""
        return self._request.prompt_ids

    @property
    def num_generated(self) -> int:
        """The number of tokens generated so far."""
        return len(self._generated)

    def try_to_start(self) -> bool:
        """Start or resume the request at ranks that have room. Return whether it now runs at ranks.

        Gives the request up if the weights that it began with are served no more.
        """
        ranks = self._resumptions.registry.choose_ranks(self._current_size(), self._request.block_hashes)
        if ranks is None:
            return False
        if self._generated and ranks[1].loaded_digest != self._weights:
            self.give_up("the weights that it began with are served no more")
            return False
        self._start(*ranks)
        return True

    def give_up(self, reason: str) -> None:
        """Fail the request, for this reason."""
        self._clock.fail()
        self.end()
        self._deliver(Failed("", reason))

    def end(self, *, answered: bool = False) -> None:
        """End the request wherever it is. A second call does nothing.

        `answered` says that the answer ended at a stop string. Ranks know no stop strings, so they are still at work.
        """
        self._has_ended = True
        self._clock.end(answered=answered)
        self._leave_queue()
        if self._in_flight is not None:
            self._in_flight.end()

    def _start(self, prefill: Rank, decode: Rank) -> None:
        if not self._generated:
            self.num_hit_tokens = 0
        self.units |= {rank.hello.unit: rank.hello.unit_digest for rank in (prefill, decode)}
        self._weights = decode.loaded_digest
        self._in_flight = InFlightRequest(prefill, decode, self._num_token_ids, self._receive)
        num_expected = self._in_flight.start(self._request, self._generated, self._current_size())
        if not self._generated:
            self._num_expected_tokens = num_expected

    def _receive(self, message: PrefixHit | Token | Failed) -> None:
        if isinstance(message, PrefixHit):
            if not self._generated:
                self.num_hit_tokens = message.num_tokens
        elif isinstance(message, Token):
            if not self._generated:
                self._clock.note_prefix(self._num_expected_tokens, self.num_hit_tokens)
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
        """Queue the request for other ranks, after its ranks were lost for `reason`."""
        self._num_resumptions += 1
        self._leave_queue = self._resumptions.join(
            self.try_to_start, lambda why: self.give_up(f"{reason}, and {why}"), self._num_resumptions - 1
        )

    def _current_size(self) -> RequestSize:
        """Return the size of the request as the next ranks have to count it.

        Tokens generated so far count as prompt, and at least one new token is expected.
        """
        num_generated = len(self._generated)
        return RequestSize(self._size.prompt_tokens + num_generated, max(self._size.new_tokens - num_generated, 1))

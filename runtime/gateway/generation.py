"""Prompts on their way: sent to a prefill rank, continued by a decode rank, read here as deltas of text.

    InFlightRequest        one prompt between its two ranks, which are one in a mixed unit; puts the tokens in order
    Generation    all prompts of one HTTP call; turns tokens into deltas

Why tokens need ordering: the first comes on the prefill rank's connection and the others on the decode rank's, and two
connections promise no order between them. The decode rank's wait until the first is here.

The invariant: however a request ends, its ranks forget it; whoever still works on it gets an Abort.
It does not try again on other ranks.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal
from uuid import uuid4

import msgspec

from runtime.gateway.answer_parts import AnswerPart, AnswerReader
from runtime.gateway.calls import Call, GenerationRequest
from runtime.gateway.detokenizer import TextStream
from runtime.gateway.http_errors import overloaded, rank_failed, unavailable
from runtime.gateway.logprobs import LogprobStream, TokenLogprobs
from runtime.gateway.metrics import GatewayMetrics, RequestClock
from runtime.gateway.rank_connection import Answer as RankAnswer
from runtime.gateway.rank_connection import Rank
from runtime.gateway.rank_load import RequestSize, largest
from runtime.gateway.registry import Registry
from runtime.gateway.tokenizer import Tokenizer
from runtime.gateway.tracing import Phase
from runtime.protocol.messages import Abort, Embedding, Failed, Prefill, Token

__all__ = ["Delta", "Generation", "InFlightRequest", "check_room"]

FinishReason = Literal["stop", "length", "tool_calls"]
MAX_UNREAD_TOKENS = 4096  # assumed, of each choice: a minute of a fast answer, some 10 MB with 20 logprobs a token


class Delta(msgspec.Struct, frozen=True):
    """The growth of choice `index`; `text` may be empty. The last delta of a choice has its finish_reason.

    `parts` is the text as thoughts, words and calls of tools; None where all of it is words. `logprobs` is None where
    nobody asked for them.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: Sequence[TokenLogprobs] | None = None
    parts: Sequence[AnswerPart] | None = None


class Generation:
    """The prompts of one call, answered side by side: all of them, or none is begun. Whoever makes one closes it."""

    def __init__(self, call: Call, registry: Registry, tokenizer: Tokenizer, metrics: GatewayMetrics) -> None:
        """Begin all prompts of the call. Raise ApiError when nobody can take them."""
        sizes = [_size(request, metrics) for request in call.requests]
        check_room(len(sizes), registry.room(largest(sizes)), registry, metrics)
        self._answers = [Answer(index, request, tokenizer) for index, request in enumerate(call.requests)]
        self._num_unfinished = len(self._answers)
        self._arrived: deque[tuple[int, Token | Failed]] = deque()
        self._has_arrived = asyncio.Event()
        self._num_token_ids = tokenizer.num_token_ids
        self._max_unread = MAX_UNREAD_TOKENS * len(call.requests)
        self._in_flight = [
            self._start(index, *asked, registry, metrics)
            for index, asked in enumerate(zip(call.requests, sizes, strict=True))
        ]
        self.num_prompt_tokens = call.num_prompt_tokens

    @property
    def num_generated_tokens(self) -> int:
        """The tokens that the model made so far. A stop token counts: it was computed like any other."""
        return sum(answer.num_tokens for answer in self._answers)

    @property
    def is_answered(self) -> bool:
        """True if every prompt has its whole answer."""
        return self._num_unfinished == 0

    @property
    def units(self) -> dict[str, str]:
        """The units that had the prompts, with their digests."""
        ranks = [rank for in_flight in self._in_flight for rank in in_flight.ranks]
        return {rank.hello.unit: rank.hello.unit_digest for rank in ranks}

    @property
    def phases(self) -> list[Phase]:
        """The phases that the prompts have been through."""
        return [phase for in_flight in self._in_flight for phase in in_flight.phases]

    @property
    def num_thinking_tokens(self) -> int | None:
        """The generated tokens that are thoughts; None for a model that does not think."""
        counts = [answer.num_thinking_tokens for answer in self._answers]
        return None if None in counts else sum(count or 0 for count in counts)

    async def next_delta(self) -> Delta | None:
        """Return the next delta of any choice, or None when all are complete. Raise ApiError when a rank gave up."""
        while not self.is_answered:
            if (delta := self.delta_here()) is not None:
                return delta
            if self._arrived:
                _, failed = self._arrived.popleft()
                assert isinstance(failed, Failed)
                raise rank_failed(failed.reason)
            self._has_arrived.clear()
            await self._has_arrived.wait()
        return None

    def delta_here(self) -> Delta | None:
        """Return the next delta if its token has come, without waiting; else None, and before a failure."""
        while self._arrived:
            index, message = self._arrived[0]
            if isinstance(message, Failed):
                return None
            self._arrived.popleft()
            answer = self._answers[index]
            if answer.finish_reason is None:  # else on its way when a stop string ended the answer
                delta = answer.take(message)
                if answer.finish_reason is not None:
                    self._num_unfinished -= 1
                    self._in_flight[index].end(answered=True)
                return delta
        return None

    def close(self) -> None:
        """Abort everything that still runs: nobody reads on."""
        for in_flight in self._in_flight:
            in_flight.end()

    def _start(
        self,
        index: int,
        request: GenerationRequest,
        size: RequestSize,
        registry: Registry,
        metrics: GatewayMetrics,
    ) -> "InFlightRequest":
        pair = registry.choose_ranks(size)
        assert pair is not None  # there was room
        clock = RequestClock(metrics, len(request.prompt_ids))
        in_flight = InFlightRequest(*pair, clock, self._num_token_ids, lambda message: self._arrive(index, message))
        in_flight.start(request, size)
        return in_flight

    def _arrive(self, index: int, message: Token | Failed) -> None:
        """Keep a token until it is read. No rank waits for a reader, so one that stalls is given up."""
        if len(self._arrived) == self._max_unread:
            self.close()
            message = Failed(self._in_flight[index].request_id, "its client does not read the answer")
        if len(self._arrived) <= self._max_unread:  # of those that were on their way then, none is kept
            self._arrived.append((index, message))
            self._has_arrived.set()


def check_room(num_requests: int, room: int | None, registry: Registry, metrics: GatewayMetrics) -> None:
    """Raise ApiError if there is no `room` for so many more requests, or None because no units are ready."""
    if room is None:
        raise unavailable("no prefill unit and decode unit are ready together, and no mixed unit is")
    if num_requests > room:
        metrics.rejected.inc(num_requests)
        raise overloaded(num_requests, room, metrics.pace.wait_s(registry.num_requests(), num_requests - room))


def _size(request: GenerationRequest, metrics: GatewayMetrics) -> RequestSize:
    return RequestSize(len(request.prompt_ids), metrics.lengths.expected(request.sampling.max_tokens))


class Answer:
    """One choice so far."""

    def __init__(self, index: int, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        self._index = index
        self._text = TextStream(tokenizer.token_bytes, request.stops)
        self._min_tokens = request.sampling.min_tokens
        self._logprobs = None if request.sampling.num_logprobs is None else LogprobStream(tokenizer)
        form = request.answer
        self._reader = None if form is None or form.is_plain else AnswerReader(form)
        self.num_tokens = 0
        self.num_thinking_tokens = 0 if form is not None and form.opening != "content" else None
        self.finish_reason: FinishReason | None = None

    def take(self, token: Token) -> Delta:
        """Return the delta that one more token makes certain."""
        self.num_tokens += 1
        if self.num_thinking_tokens is not None and self._reader is not None:
            self.num_thinking_tokens += self._reader.is_thinking
        num_characters_before = self._text.num_characters
        may_stop = self.num_tokens > self._min_tokens
        text = "" if token.finish_reason == "stop" else self._text.push(token.token_id, may_stop=may_stop)
        if token.finish_reason is not None:
            text += self._text.finish()
        self.finish_reason = "stop" if self._text.is_stopped else token.finish_reason
        logprobs = self._logprobs_of(text, token, num_characters_before)
        parts = self._parts_of(text)
        return Delta(self._index, text, self.finish_reason, logprobs, parts)

    def _parts_of(self, text: str) -> Sequence[AnswerPart] | None:
        """Return what the text says. An answer that ends by itself, and called tools, ends for their sake."""
        if self._reader is None:
            return None
        parts = self._reader.push(text, is_last=self.finish_reason is not None)
        if self.finish_reason == "stop" and self._reader.num_calls:
            self.finish_reason = "tool_calls"
        return parts

    def _logprobs_of(self, text: str, token: Token, offset: int) -> Sequence[TokenLogprobs] | None:
        if self._logprobs is None:
            return None
        if token.finish_reason != "stop" and token.logprobs is not None:
            self._logprobs.push(token.token_id, token.logprobs, offset)
        is_whole = self.finish_reason is not None and not self._text.is_stopped
        return self._logprobs.release(len(text), all_of_them=is_whole)


class InFlightRequest:
    """One prompt between its two ranks. `deliver` gets its tokens in the order the model made them, or its failure.

    A rank that says a token id outside the vocabulary of `num_token_ids` fails the request.
    """

    def __init__(
        self,
        prefill: Rank,
        decode: Rank,
        clock: RequestClock,
        num_token_ids: int,
        deliver: Callable[[Token | Failed], None],
    ) -> None:
        self.request_id = uuid4().hex
        self._prefill, self._decode = prefill, decode
        self._clock = clock
        self._num_token_ids = num_token_ids
        self._deliver = deliver
        self._num_delivered = 0
        self._early: list[Token] = []

    @property
    def ranks(self) -> tuple[Rank, Rank]:
        """The rank for its prompt, and the one for its tokens."""
        return self._prefill, self._decode

    @property
    def phases(self) -> list[Phase]:
        """The phases that have begun and, of the last one, as much as there is."""
        first, last = self._clock.first_token, self._clock.last_token
        prefill, decode = (
            partial(Phase, name, rank.hello.unit, rank.hello.rank)
            for name, rank in (("prefill", self._prefill), ("decode", self._decode))
        )
        if first is None or last is None:
            return [prefill(self._clock.started, time.monotonic())]
        return [prefill(self._clock.started, first), decode(first, last)]

    def start(self, request: GenerationRequest, size: RequestSize) -> None:
        """Send the prompt off."""
        self._prefill.subscribe(self.request_id, size, self._receive)
        self._decode.subscribe(self.request_id, size, self._receive)
        kv_host, kv_port = self._decode.hello.kv_host, self._decode.hello.kv_port  # None where it is a mixed rank
        self._prefill.send(Prefill(self.request_id, request.prompt_ids, request.sampling, kv_host, kv_port))

    def end(self, *, answered: bool = False) -> None:
        """End the request, wanted or not, and tell ranks that still work on it. Ending twice is ending once.

        An answer that ends at a stop string is `answered`, though its ranks know nothing of its end.
        """
        self._clock.end(answered=answered)
        for rank in (self._prefill, self._decode):
            if rank.unsubscribe(self.request_id):
                rank.send(Abort(self.request_id))

    def _receive(self, rank: Rank, message: RankAnswer) -> None:
        if isinstance(message, Embedding):
            message = Failed(message.request_id, f"{rank} said an embedding where a token was due")
        if isinstance(message, Failed):
            rank.unsubscribe(self.request_id)
            self.end()
            self._deliver(Failed(self.request_id, message.reason + self._between_whom(rank)))
        elif not self._is_in_vocabulary(message):
            self.end()
            self._deliver(Failed(self.request_id, f"{rank} said a token id outside the vocabulary"))
        elif rank is not self._prefill and self._num_delivered == 0:
            self._early.append(message)
        else:
            for token in (message, *self._early):
                self._pass_on(token)
            self._early.clear()

    def _between_whom(self, rank: Rank) -> str:
        """Return both ranks' names after a failure that a prefill rank tells: the other one may be at fault."""
        if rank is not self._prefill or self._prefill is self._decode or rank.state == "lost":
            return ""
        return f" ({self._prefill}, which hands over to {self._decode})"

    def _pass_on(self, token: Token) -> None:
        self._num_delivered += 1
        self._clock.token()
        if self._num_delivered > 1 and self._prefill is not self._decode:
            self._prefill.unsubscribe(self.request_id)  # a decode token: the handover is through
        if token.finish_reason is not None:
            self._clock.end(answered=True)
            self._prefill.unsubscribe(self.request_id)
            self._decode.unsubscribe(self.request_id)
        self._deliver(token)

    def _is_in_vocabulary(self, token: Token) -> bool:
        """Return whether every id is one: the token's own, and those that its logprobs are of."""
        if not 0 <= token.token_id < self._num_token_ids:
            return False
        if token.logprobs is None:
            return True
        return all(0 <= token_id < self._num_token_ids for token_id, _ in token.logprobs.best)

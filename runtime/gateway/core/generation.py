"""Follow one HTTP call's prompts at the ranks, and turn their tokens into deltas of text.

    Generation    all prompts of the call
    Choice        one choice of the answer so far

The invariant: once a call has ended, in whatever way, no rank works on its prompts.
It does not know how a prompt moves between ranks (`in_flight.py` does) or goes on after a loss (`resumption.py` does).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Literal

import msgspec

from runtime.gateway.core.answer_parts import AnswerPart, AnswerReader
from runtime.gateway.core.calls import Call, GenerationRequest
from runtime.gateway.core.detokenizer import TextStream
from runtime.gateway.core.logprobs import LogprobStream, TokenLogprobs
from runtime.gateway.core.resumption import ResumableRequest
from runtime.gateway.core.tokenizer import Tokenizer
from runtime.gateway.edge.http_errors import rank_failed
from runtime.gateway.ranks.rank_load import RequestSize, largest_size
from runtime.gateway.telemetry.metrics import GatewayMetrics, RequestClock
from runtime.gateway.telemetry.tracing import Phase
from runtime.gateway.tenants.admission import Admission
from runtime.gateway.tenants.fair_queue import Turn, cost
from runtime.protocol.messages import Failed, Token

__all__ = ["Delta", "Generation"]

FinishReason = Literal["stop", "length", "tool_calls"]
MAX_UNREAD_TOKENS = 4096  # assumed, of each choice: a minute of a fast answer, some 10 MB with 20 logprobs a token


class Delta(msgspec.Struct, frozen=True):
    """What a token adds to choice `index` of an answer; `text` may be empty.

    A choice's last delta has a finish_reason.

    `parts` is the text split into thoughts, words and tool calls; None for a plain answer. `logprobs` is None unless
    the call asks for them.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: Sequence[TokenLogprobs] | None = None
    parts: Sequence[AnswerPart] | None = None


class Generation:
    """The prompts of one call while ranks answer them. Its creator must close it."""

    def __init__(
        self, call: Call, caller: str, admission: Admission, tokenizer: Tokenizer, metrics: GatewayMetrics
    ) -> None:
        """Queue all prompts of the call. Raises ApiError, and queues none, if there is no room for them."""
        sizes = [_expected_size(request, metrics) for request in call.requests]
        admission.answers.check(caller, len(sizes), largest_size(sizes))
        self._queue = admission.answers
        self._choices = [Choice(index, request, tokenizer) for index, request in enumerate(call.requests)]
        self._num_unfinished = len(self._choices)
        self._inbox: deque[tuple[int, Token | Failed]] = deque()
        self._inbox_filled = asyncio.Event()
        self._num_token_ids = tokenizer.num_token_ids
        self._max_unread = MAX_UNREAD_TOKENS * len(call.requests)
        self.num_prompt_tokens = call.num_prompt_tokens
        self._requests = [
            ResumableRequest(
                request,
                size,
                admission.resumptions,
                RequestClock(metrics, size.prompt_tokens),
                tokenizer.num_token_ids,
                partial(self._receive, index),
            )
            for index, (request, size) in enumerate(zip(call.requests, sizes, strict=True))
        ]
        self._sizes = sizes
        self._turns = [self._join(caller, index) for index in range(len(sizes))]

    @property
    def num_generated_tokens(self) -> int:
        """The number of tokens generated so far. A stop token counts, because it was computed like any other."""
        return sum(choice.num_tokens for choice in self._choices)

    @property
    def num_hit_tokens(self) -> int:
        """The number of prompt tokens that came from the cache.

        A prompt with several choices counts once: with the hits of the choice that has the fewest.
        """
        of_prompts = groupby(self._requests, lambda request: id(request.prompt_ids))
        return sum(min(request.num_hit_tokens for request in of_prompt) for _, of_prompt in of_prompts)

    @property
    def is_answered(self) -> bool:
        """True if every choice is complete."""
        return self._num_unfinished == 0

    @property
    def units(self) -> dict[str, str]:
        """Unit name -> unit digest, for the units whose ranks got the prompts."""
        return {unit: digest for request in self._requests for unit, digest in request.units.items()}

    @property
    def phases(self) -> list[Phase]:
        """The phases that the prompts have gone through."""
        return [phase for request in self._requests for phase in request.phases]

    @property
    def num_thinking_tokens(self) -> int | None:
        """The number of generated tokens that are thoughts; None for a model that does not think."""
        counts = [choice.num_thinking_tokens for choice in self._choices]
        return None if None in counts else sum(count or 0 for count in counts)

    async def next_delta(self) -> Delta | None:
        """Return the next delta of any choice; None when all are complete. Raises ApiError if a prompt failed."""
        while not self.is_answered:
            if (delta := self.poll_delta()) is not None:
                return delta
            if self._inbox:
                _, failed = self._inbox.popleft()
                assert isinstance(failed, Failed)
                raise rank_failed(failed.reason)
            self._inbox_filled.clear()
            await self._inbox_filled.wait()
        return None

    def poll_delta(self) -> Delta | None:
        """Return the next delta without waiting; None if no token has come, or if a failure is next."""
        while self._inbox:
            index, message = self._inbox[0]
            if isinstance(message, Failed):
                return None
            self._inbox.popleft()
            choice = self._choices[index]
            if choice.finish_reason is None:  # else the token was on its way when a stop string ended the choice
                delta = choice.push(message)
                if choice.finish_reason is not None:
                    self._num_unfinished -= 1
                    self._end(index, answered=True)
                return delta
        return None

    def close(self) -> None:
        """Abort what still runs, and drop the tokens that were not read."""
        self._end_all()
        self._inbox.clear()

    def _end_all(self) -> None:
        for index in range(len(self._turns)):
            self._end(index)

    def _join(self, caller: str, index: int) -> Turn:
        request, size = self._requests[index], self._sizes[index]
        return self._queue.join(
            caller, cost(size.prompt_tokens, size.new_tokens), request.try_to_start, request.give_up
        )

    def _end(self, index: int, *, answered: bool = False) -> None:
        request = self._requests[index]
        request.end(answered=answered)
        self._queue.end(self._turns[index], cost(self._sizes[index].prompt_tokens, request.num_generated))

    def _receive(self, index: int, message: Token | Failed) -> None:
        """Keep a token until it is read. Ranks do not wait for readers, so a call whose reader stalls fails."""
        if len(self._inbox) == self._max_unread:
            self._end_all()
            message = Failed("", "its client does not read the answer")
        if len(self._inbox) <= self._max_unread:  # tokens that were still on their way are dropped
            self._inbox.append((index, message))
            self._inbox_filled.set()


def _expected_size(request: GenerationRequest, metrics: GatewayMetrics) -> RequestSize:
    return RequestSize(len(request.prompt_ids), metrics.lengths.expect(request.sampling.max_tokens))


class Choice:
    """One choice of an answer, with the text that has come so far."""

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

    def push(self, token: Token) -> Delta:
        """Add a token. Return the text and logprobs that are certain now, as a delta."""
        self.num_tokens += 1
        if self.num_thinking_tokens is not None and self._reader is not None:
            self.num_thinking_tokens += self._reader.is_thinking
        num_characters_before = self._text.num_characters
        may_stop = self.num_tokens > self._min_tokens
        text = "" if token.finish_reason == "stop" else self._text.push(token.token_id, may_stop=may_stop)
        if token.finish_reason is not None:
            text += self._text.finish()
        self.finish_reason = "stop" if self._text.is_stopped else token.finish_reason
        logprobs = self._take_logprobs(text, token, num_characters_before)
        parts = self._read_parts(text)
        return Delta(self._index, text, self.finish_reason, logprobs, parts)

    def _read_parts(self, text: str) -> Sequence[AnswerPart] | None:
        """Return the parts of the text; None for a plain answer.

        Set the finish reason to "tool_calls" once a choice with tool calls has stopped.
        """
        if self._reader is None:
            return None
        parts = self._reader.push(text, is_last=self.finish_reason is not None)
        if self.finish_reason == "stop" and self._reader.num_calls:
            self.finish_reason = "tool_calls"
        return parts

    def _take_logprobs(self, text: str, token: Token, offset: int) -> Sequence[TokenLogprobs] | None:
        if self._logprobs is None:
            return None
        if token.finish_reason != "stop" and token.logprobs is not None:
            self._logprobs.push(token.token_id, token.logprobs, offset)
        is_whole = self.finish_reason is not None and not self._text.is_stopped
        return self._logprobs.release(len(text), is_last=is_whole)

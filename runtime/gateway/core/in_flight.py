"""One prompt at its two ranks: a prefill rank computes the first token, a decode rank the others.

In a mixed unit, both are the same rank.
Why tokens need ordering: the first token comes on the prefill rank's connection and the others on the decode rank's,
and two connections promise no order between them. Tokens are numbered, and one that comes early waits.

The invariant: however the request ends, its ranks forget it, and a rank that still works on it gets an Abort.
It does not move a request to other ranks (`resumption.py` does).
"""

import math
import secrets
from collections.abc import Callable, Sequence
from uuid import uuid4

from runtime.gateway.core.calls import GenerationRequest
from runtime.gateway.ranks.rank_connection import Rank, RankReply
from runtime.gateway.ranks.rank_load import RequestSize
from runtime.protocol.messages import Abort, Embedding, Expect, Failed, Prefill, PrefixHit, Token

__all__ = ["InFlightRequest", "new_request_id"]

TICKET_BYTES = 16  # nobody guesses 128 bits
GATEWAY = secrets.token_hex(8)  # names this process in request ids, so that ranks know a request's gateway


def new_request_id() -> str:
    """Return a new request id, `GATEWAY-NUMBER`, by which ranks know the request's gateway."""
    return f"{GATEWAY}-{uuid4().hex}"


class InFlightRequest:
    """A request at a pair of ranks.

    `deliver` gets its tokens in the order in which the model made them, or its failure.

    The request fails if a rank sends wrong messages: a token id outside the vocabulary of `num_token_ids`, a token
    twice, more tokens than requested, logprobs that were not requested, or a prefix hit longer than the prompt.
    """

    def __init__(
        self, prefill: Rank, decode: Rank, num_token_ids: int, deliver: Callable[[PrefixHit | Token | Failed], None]
    ) -> None:
        self.request_id = new_request_id()
        self._prefill, self._decode = prefill, decode
        self._num_token_ids = num_token_ids
        self._deliver = deliver
        self._next_index = self._max_tokens = self._num_prompt_tokens = 0
        self._num_logprobs: int | None = None
        self._early_tokens: dict[int, Token] = {}  # index -> token

    @property
    def ranks(self) -> tuple[Rank, Rank]:
        """The rank that computes the prompt, and the rank that generates the tokens."""
        return self._prefill, self._decode

    def start(self, request: GenerationRequest, generated: Sequence[int], size: RequestSize) -> int:
        """Send the prompt, with the tokens that lost ranks have generated, to its ranks.

        `size` counts the generated tokens as prompt. Return how many prompt tokens the prefill rank is expected to
        have in its cache.
        """
        self._next_index, self._max_tokens = len(generated), request.sampling.max_tokens
        self._num_logprobs, self._num_prompt_tokens = request.sampling.num_logprobs, len(request.prompt_ids)
        num_held = self._prefill.subscribe(self.request_id, size, self._receive, request.block_hashes)
        if self._decode is not self._prefill:
            self._decode.subscribe(self.request_id, size, self._receive, request.block_hashes)
        prompt = self.request_id, request.prompt_ids, request.sampling
        salt = request.cache_salt
        self._prefill.send(Prefill(*prompt, *self._arrange_kv_transfer(), generated=list(generated), cache_salt=salt))
        return num_held

    def end(self) -> None:
        """End the request, and abort it at ranks that still work on it. A second call does nothing."""
        for rank in (self._prefill, self._decode):
            if rank.unsubscribe(self.request_id):
                rank.send(Abort(self.request_id))

    def _arrange_kv_transfer(self) -> tuple[str | None, int | None, str | None]:
        """Announce the KV to the decode rank. Return (host, port, ticket), which are all None at a mixed rank."""
        hello = self._decode.hello
        if hello.kv_host is None:
            return None, None, None
        ticket = secrets.token_hex(TICKET_BYTES)
        self._decode.send(Expect(self.request_id, ticket))
        return hello.kv_host, hello.kv_port, ticket

    def _receive(self, rank: Rank, message: RankReply) -> None:
        if isinstance(message, Embedding):
            message = Failed(message.request_id, f"{rank} said an embedding where a token was due")
        if isinstance(message, Failed):
            rank.unsubscribe(self.request_id)
            self._fail(message.reason + self._name_both_ranks(rank), may_retry=message.may_retry)
        elif isinstance(message, PrefixHit):
            if message.num_tokens > self._num_prompt_tokens:
                self._fail(f"{rank} said that it found {message.num_tokens} of {self._num_prompt_tokens} prompt tokens")
            else:
                self._deliver(message)
        elif (fault := self._find_fault(message)) is not None:
            self._fail(f"{rank} said {fault}")
        else:
            self._take_token(rank, message)

    def _find_fault(self, token: Token) -> str | None:
        """Return what is wrong with the token; None if nothing is wrong."""
        if not self._is_in_vocabulary(token):
            return "a token id outside the vocabulary"
        if not self._has_requested_logprobs(token):
            return "other logprobs than were asked for"
        if token.index < self._next_index or token.index in self._early_tokens:
            return f"token {token.index} twice"
        if token.index >= self._max_tokens:
            return f"token {token.index}, and {self._max_tokens} were asked for"
        if token.index == self._max_tokens - 1 and token.finish_reason is None:
            return "the last token that was asked for, and not that it is the last"
        return None

    def _take_token(self, rank: Rank, token: Token) -> None:
        """Deliver the token, and later ones that arrived before it.

        If an earlier token is still missing, keep this one until the missing one arrives.
        """
        if token.index > self._next_index:
            self._early_tokens[token.index] = token
            return
        self._pass_on(rank, token)
        while (early := self._early_tokens.pop(self._next_index, None)) is not None:
            self._pass_on(rank, early)

    def _fail(self, reason: str, *, may_retry: bool = False) -> None:
        self.end()
        self._deliver(Failed(self.request_id, reason, may_retry))

    def _name_both_ranks(self, rank: Rank) -> str:
        """Return ` (PREFILL, which hands over to DECODE)`, to add to a failure that may be the decode rank's fault.

        Return an empty text if only one rank can be at fault.
        """
        if rank is not self._prefill or self._prefill is self._decode or rank.state == "lost":
            return ""
        return f" ({self._prefill}, which hands over to {self._decode})"

    def _pass_on(self, rank: Rank, token: Token) -> None:
        self._next_index += 1
        if rank is self._decode and self._prefill is not self._decode:
            self._prefill.unsubscribe(self.request_id)  # a token from the decode rank: the handover is complete
        if token.finish_reason is not None:
            self._prefill.unsubscribe(self.request_id)
            self._decode.unsubscribe(self.request_id)
        self._deliver(token)

    def _has_requested_logprobs(self, token: Token) -> bool:
        """Return whether the token has the logprobs that were requested, or none if none were.

        They must be of different tokens, the best first, in the requested number, each finite and at most 0.
        """
        if token.logprobs is None or self._num_logprobs is None:
            return token.logprobs is None and self._num_logprobs is None
        best = [logprob for _, logprob in token.logprobs.best]
        return (
            len(best) == len(dict(token.logprobs.best)) == min(self._num_logprobs, self._num_token_ids)
            and best == sorted(best, reverse=True)
            and all(-math.inf < each <= 0 for each in (token.logprobs.chosen, *best))
        )

    def _is_in_vocabulary(self, token: Token) -> bool:
        """Return whether the token's id and the ids of its logprobs are in the vocabulary."""
        if not 0 <= token.token_id < self._num_token_ids:
            return False
        if token.logprobs is None:
            return True
        return all(0 <= token_id < self._num_token_ids for token_id, _ in token.logprobs.best)

"""Send logprobs along with the text: a token's are sent with the first character that it contributes to.

    token -> held, with the number of characters before it -> sent once that many characters and one more are sent

The invariant: when an answer has ended, the logprobs sent are those of the tokens that make up its text, in order.
A stop token and tokens that lie wholly in a stop string are not among them.
It does not decide which logits they are taken from (`runtime/serving/sampling.py` does).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.gateway.core.tokenizer import Spelling, Tokenizer
from runtime.protocol.messages import Logprobs

__all__ = ["LogprobStream", "TokenLogprobs"]


@dataclass(frozen=True)
class TokenLogprobs:
    """One token's logprobs.

    The token begins after `offset` characters; `best` are the likeliest in its place, best first.
    """

    offset: int
    token: Spelling
    logprob: float
    best: tuple[tuple[Spelling, float], ...]


class LogprobStream:
    """Holds the logprobs of one answer's tokens until their text is sent."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending: deque[TokenLogprobs] = deque()
        self._num_sent = 0

    def push(self, token_id: int, logprobs: Logprobs, offset: int) -> None:
        """Hold a token's logprobs. `offset` is the number of characters of the answer before it."""
        best = tuple((self._tokenizer.spell(other), logprob) for other, logprob in logprobs.best)
        self._pending.append(TokenLogprobs(offset, self._tokenizer.spell(token_id), logprobs.chosen, best))

    def release(self, num_characters: int, *, is_last: bool) -> Sequence[TokenLogprobs]:
        """Remove and return the logprobs to send with the next `num_characters` of text, or all if `is_last`."""
        self._num_sent += num_characters
        released = []
        while self._pending and (is_last or self._pending[0].offset < self._num_sent):
            released.append(self._pending.popleft())
        return released

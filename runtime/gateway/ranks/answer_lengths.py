"""Guess the length of an answer from earlier ones, to know how much KV to keep free for it.

Most clients allow far more tokens than they get. If every request had room for all that it may get, caches would stay
half empty. A request that gets more than expected counts with what it has (`ledger.py`). A rank whose cache gets full
after all lets its newest request wait. The guess is a moving average, so it follows what clients ask for.

Model: SGLang's scheduler, which keeps room for a share of the tokens that running requests may still generate.
"""

import math

__all__ = ["AnswerLengths"]

WEIGHT = 0.02  # weight of the latest answer; assumed: some hundred answers count, so that one long one changes little


class AnswerLengths:
    """The mean length of answers."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def record(self, num_tokens: int) -> None:
        """Record the length in tokens of an answer that has ended."""
        self._mean = num_tokens if self._mean is None else (1 - WEIGHT) * self._mean + WEIGHT * num_tokens

    def expect(self, max_tokens: int) -> int:
        """Return the expected length, in tokens, of an answer of at most `max_tokens`.

        Before any answer has ended, the expected length is `max_tokens`.
        """
        return max_tokens if self._mean is None else min(max_tokens, math.ceil(self._mean))

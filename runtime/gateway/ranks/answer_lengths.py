"""How many tokens an answer will have, guessed from those that have ended, so that KV is kept free for it.

Most clients allow far more tokens than they get. If every request had room for all that it may get, caches would stand
half empty. A request that gets more than was expected counts with what it has (`ledger.py`), and a rank whose cache is
full after all lets its newest request wait. The guess is a moving average, so that it follows what clients ask for.

Model: SGLang's scheduler, which keeps room for a share of what running requests may still generate.
"""

import math

__all__ = ["AnswerLengths"]

WEIGHT = 0.02  # assumed, of the latest answer: some hundred of them count, so that one long answer moves little


class AnswerLengths:
    """The mean length of answers."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def record(self, num_tokens: int) -> None:
        """Note that an answer had so many tokens."""
        self._mean = num_tokens if self._mean is None else (1 - WEIGHT) * self._mean + WEIGHT * num_tokens

    def expect(self, max_tokens: int) -> int:
        """Return the tokens to expect of an answer that may have `max_tokens`: all, before any answer has ended."""
        return max_tokens if self._mean is None else min(max_tokens, math.ceil(self._mean))

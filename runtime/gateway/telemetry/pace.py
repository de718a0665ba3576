"""How long somebody for whom there is no room had better wait: until enough of the running requests have ended.

By Little's law, where N requests run and each takes T seconds on average, one ends every T / N seconds. T is a moving
average of the latest answers, so that it follows what clients ask for. Before any answer nothing is known.
It does not promise the room: others ask too.
Source: J. D. C. Little, "A Proof for the Queuing Formula L = lambda W", Operations Research 9 (1961).
"""

import math

__all__ = ["Pace"]

WEIGHT = 0.1  # assumed, of the latest answer: some twenty of them count
LEAST_S, MOST_S = 1, 60  # assumed: a client that waits longer asks somebody else


class Pace:
    """The pace at which answers end."""

    def __init__(self) -> None:
        self._mean_s: float | None = None

    def record(self, seconds: float) -> None:
        """Note that an answer took so long."""
        self._mean_s = seconds if self._mean_s is None else (1 - WEIGHT) * self._mean_s + WEIGHT * seconds

    def wait_s(self, num_running: int, num_needed: int) -> int:
        """Return the seconds until about `num_needed` of the `num_running` requests have ended."""
        if self._mean_s is None or num_running == 0:
            return LEAST_S
        return min(max(math.ceil(num_needed * self._mean_s / num_running), LEAST_S), MOST_S)

"""Estimate when there will be room: when enough of the running requests have ended.

By Little's law, if N requests run and each takes T seconds on average, one ends every T / N seconds. T is a moving
average of the latest answers, so it follows what clients ask for. Before the first answer it is unknown.
It does not reserve the room: other callers may take it.
Source: J. D. C. Little, "A Proof for the Queuing Formula L = lambda W", Operations Research 9 (1961).
"""

import math

__all__ = ["Pace"]

WEIGHT = 0.1  # weight of the latest answer; assumed: about twenty answers count
MIN_WAIT_S, MAX_WAIT_S = 1, 60  # assumed: a client that has to wait longer goes elsewhere


class Pace:
    """Tracks the mean time of an answer, and estimates when enough running requests have ended."""

    def __init__(self) -> None:
        self._mean_s: float | None = None

    def record(self, seconds: float) -> None:
        """Record how many seconds an answer took."""
        self._mean_s = seconds if self._mean_s is None else (1 - WEIGHT) * self._mean_s + WEIGHT * seconds

    def wait_s(self, num_running: int, num_needed: int) -> int:
        """Return roughly how many seconds pass until `num_needed` of the `num_running` requests have ended.

        The result is from MIN_WAIT_S to MAX_WAIT_S. It is MIN_WAIT_S if no answer has ended yet or no request runs.
        """
        if self._mean_s is None or num_running == 0:
            return MIN_WAIT_S
        return min(max(math.ceil(num_needed * self._mean_s / num_running), MIN_WAIT_S), MAX_WAIT_S)

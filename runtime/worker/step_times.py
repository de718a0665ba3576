"""The time that a rank's own work takes in a step. All ranks of a unit step together, so the slowest delays the others.

    a step = own work + waits for rows that peers have not sent yet

The slow rank waits least. The steps of all ranks take equally long, so only their own parts show which rank is slow.
The gateway compares these (`gateway/ranks/stragglers.py`). On a GPU the host waits for no rows, so there the own part
does not show it yet.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runtime.expert_parallel.traffic import ExchangeTime
from runtime.protocol.messages import StepTime

__all__ = ["StepTimes"]

SMOOTHING = 1 / 16  # assumed: a slow rank shows after some ten steps
# assumed: a step counts at most this many times the smoothed time, so a core that another process took for a moment
# makes no slow rank. With 2, a rank whose machine stops it for 30 of every 45 ms was named at 31 % of a model's steps;
# with 2.5 at 84 %, without a limit at 97 %.
MOST_TIMES = 2.5
SMOOTHED_S = 5.0  # assumed: long steps count by their time, so that a slow rank shows within ten seconds
US_PER_S = 1e6


class StepTimes:
    """Measures steps: their `count`, the `seconds` in all, and how long the rank waited for peers (`waited_s`)."""

    def __init__(self, waits: ExchangeTime, now: Callable[[], float] = time.monotonic) -> None:
        self.count, self.seconds, self.waited_s = 0, 0.0, 0.0
        self._waits, self._now = waits, now
        self._own_s = 0.0  # the own part of a step, smoothed
        self._num_told = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure the step that runs in this context."""
        began, waited_before = self._now(), self._waits.seconds
        yield
        seconds, waited_s = self._now() - began, self._waits.seconds - waited_before
        self._smooth(max(seconds - waited_s, 0.0), seconds)
        self.count, self.seconds, self.waited_s = self.count + 1, self.seconds + seconds, self.waited_s + waited_s

    def tell(self, say: Callable[[StepTime], None]) -> None:
        """Report the smoothed time of own work in a step through `say`, if there was a step since the last call."""
        if self.count != self._num_told:
            self._num_told = self.count
            say(StepTime(round(self._own_s * US_PER_S)))

    def _smooth(self, own_s: float, seconds: float) -> None:
        """Update the smoothed time of own work. One long step raises it a little, many raise it fully."""
        if self._own_s == 0.0:  # at the first step, or after steps that took no time
            self._own_s = own_s
        share = min(max(SMOOTHING, seconds / SMOOTHED_S), 1.0)
        self._own_s += share * (min(own_s, MOST_TIMES * self._own_s) - self._own_s)

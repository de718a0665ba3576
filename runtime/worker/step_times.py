"""How long a rank's steps take by its own work: all ranks of a unit step together, and the slowest holds up the rest.

    a step = own work + waits for rows that peers have not sent yet

The slow rank waits least. So the steps of all ranks are equally long, and only their own parts tell who is slow: the
gateway compares them (`gateway/ranks/stragglers.py`). On a GPU the host waits for no rows, so there it tells nothing
yet.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runtime.expert_parallel.traffic import ExchangeTime
from runtime.protocol.messages import StepTime

__all__ = ["StepTimes"]

SMOOTHING = 1 / 16  # assumed: a slow rank shows after some ten steps
# assumed: of the steps before. A core that another process had for a moment makes no slow rank. With 2, a rank that its
# machine stops for 30 of every 45 ms was named at 31 % of a model's steps; with 2.5 at 84 %, without a limit at 97 %.
MOST_TIMES = 2.5
SMOOTHED_S = 5.0  # assumed: where steps are long, a step counts by its time, so that ten seconds tell who is slow
US_PER_S = 1e6


class StepTimes:
    """The steps so far: `count`, `seconds` in all, and `waited_s` of them."""

    def __init__(self, waits: ExchangeTime, now: Callable[[], float] = time.monotonic) -> None:
        self.count, self.seconds, self.waited_s = 0, 0.0, 0.0
        self._waits, self._now = waits, now
        self._own_s = 0.0  # of a step, smoothed
        self._num_told = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure one step."""
        began, waited_before = self._now(), self._waits.seconds
        yield
        seconds, waited_s = self._now() - began, self._waits.seconds - waited_before
        self._smooth(max(seconds - waited_s, 0.0), seconds)
        self.count, self.seconds, self.waited_s = self.count + 1, self.seconds + seconds, self.waited_s + waited_s

    def tell(self, say: Callable[[StepTime], None]) -> None:
        """Tell what a step takes by this rank's own work, unless there was none since it was told."""
        if self.count != self._num_told:
            self._num_told = self.count
            say(StepTime(round(self._own_s * US_PER_S)))

    def _smooth(self, own_s: float, seconds: float) -> None:
        """Take in a step's own part. Many steps that are longer raise what they are compared with; one does not."""
        if self._own_s == 0.0:  # at the first step, or after some that took nothing
            self._own_s = own_s
        share = min(max(SMOOTHING, seconds / SMOOTHED_S), 1.0)
        self._own_s += share * (min(own_s, MOST_TIMES * self._own_s) - self._own_s)

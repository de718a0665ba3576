"""The pulse of a rank: the answer to a probe that asks whether the rank still moves.

    loading   no: a rank has not started until its weights are loaded
    joining   yes: it waits for its peers, which have their own deadlines
    stepping  yes, if its loop turned a moment ago; an idle loop turns too

Every turn begins with a collective, so a rank whose loop stands still stops its whole unit. Then all ranks of the unit
answer no. If they do so for longer than any step takes, they are restarted.

A loop that turns also makes calls at intervals (`repeat`): it tells the gateways that it moves, and more often its
load. If a rank is silent for longer than any step takes, the gateway gives it up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Pulse"]

MOMENT_S = 10.0  # assumed: most turns are shorter, and probes ask again during a longer one
TELL_S = 10.0  # assumed: few messages, and often enough, as a rank may be silent for at least 30 s


@dataclass
class _RepeatedCall:
    """A call to make at intervals, and the time when it was last made."""

    tell: Callable[[], None]
    period_s: float
    last_at: float


class Pulse:
    """Shows whether a rank's main thread moves. The thread of its metrics port reads it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._has_weights = False
        self._last_turn: float | None = None
        self._telling: list[_RepeatedCall] = []
        self.num_turns = 0

    def repeat(self, tell: Callable[[], None], period_s: float = TELL_S) -> None:
        """Call `tell` every `period_s` seconds for as long as the step loop turns, on the loop's own thread."""
        self._telling.append(_RepeatedCall(tell, period_s, self._now()))

    def note_weights(self) -> None:
        """Record that the weights are loaded, which means that the rank has started."""
        self._has_weights = True

    def turn(self) -> None:
        """Record that the step loop begins another turn, and make the repeated calls that are due."""
        self._last_turn = now = self._now()
        self.num_turns += 1
        for each in self._telling:
            if now - each.last_at >= each.period_s:
                each.last_at = now
                each.tell()

    def is_moving(self) -> bool:
        """Return whether the rank moves: its step loop turned within the last MOMENT_S seconds.

        Before the loop begins, return whether the rank has started, which is when its weights are loaded.
        """
        if self._last_turn is None:
            return self._has_weights
        return self._now() - self._last_turn < MOMENT_S

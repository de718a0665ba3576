"""The pulse of a rank: it tells whoever may start the rank again whether it moves.

    loading   no: until its weights are loaded, a rank has not started
    joining   yes: it waits for its peers, who have deadlines of their own
    stepping  as long as its loop turned a moment ago: an idle loop turns as well

A rank whose loop stands still holds up its whole unit: every turn begins with a collective. So all ranks of the unit
say no, and whoever asks starts them again, once they have said so for longer than any step takes.

A loop that turns tells the gateway so now and then (`repeat`), and more often what it has to do. From a rank
that says nothing for longer than any step takes, the gateway expects no answer.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Pulse"]

MOMENT_S = 10.0  # assumed: most turns are shorter, and one that is longer is asked about again
TELL_S = 10.0  # assumed: often enough beside the 30 s that a rank may be silent at least, and few messages


@dataclass
class _RepeatedCall:
    """Something to tell now and then, and when it was told last."""

    tell: Callable[[], None]
    period_s: float
    last_at: float


class Pulse:
    """The beat of a rank's main thread, read by the thread of its metrics port."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._has_weights = False
        self._last_turn: float | None = None
        self._telling: list[_RepeatedCall] = []
        self.num_turns = 0

    def repeat(self, tell: Callable[[], None], period_s: float = TELL_S) -> None:
        """Call `tell` every `period_s`, from the thread of the loop, as long as it turns."""
        self._telling.append(_RepeatedCall(tell, period_s, self._now()))

    def note_weights(self) -> None:
        """Say from now on that the rank has started."""
        self._has_weights = True

    def turn(self) -> None:
        """Note that the loop begins another turn."""
        self._last_turn = now = self._now()
        self.num_turns += 1
        for each in self._telling:
            if now - each.last_at >= each.period_s:
                each.last_at = now
                each.tell()

    def is_moving(self) -> bool:
        """Return whether the rank has started and its loop, once begun, turned a moment ago."""
        if self._last_turn is None:
            return self._has_weights
        return self._now() - self._last_turn < MOMENT_S

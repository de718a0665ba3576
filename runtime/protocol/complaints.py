"""Log lines about closed connections, limited in number.

A scanner, a probe of another protocol or a pod of another plan can open a port a thousand times a second. Each closed
connection gets one line, but after `MAX_LINES` in a minute they are only counted. A line may contain what the other
side sent, so it is cut, and no character of it starts another line.
"""

import time
from collections.abc import Callable

__all__ = ["Complaints"]

MAX_LINES = 100
MAX_LINE = 500  # characters
PERIOD_S = 60.0


class Complaints:
    """Logs complaints about the connections of one port. Used from one thread."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._began = clock()
        self._num_lines = 0  # logged since `_began`

    def __call__(self, sentence: str) -> None:
        """Log the sentence. After too many in a minute, only count it: a later line says how many were left out."""
        now = self._clock()
        if now - self._began >= PERIOD_S:
            if self._num_lines > MAX_LINES:
                self._say(f"{self._num_lines - MAX_LINES:,} more lines of this kind were left out")
            self._began, self._num_lines = now, 0
        self._num_lines += 1
        if self._num_lines <= MAX_LINES:
            self._say(_one_line(sentence))


def _one_line(sentence: str) -> str:
    """Return at most `MAX_LINE` characters of `sentence`, with unprintable ones escaped."""
    start = sentence[: MAX_LINE + 1]
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in start)
    return shown if len(shown) <= MAX_LINE else f"{shown[: MAX_LINE - 3]}..."

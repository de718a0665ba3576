"""The drain of a node: its ranks answer the requests that they have, then they end. The node ends ranks that cannot.

    SIGTERM -> every rank drains (`leaving.py`) -> all end together
               the drain's time is over, or a second signal comes -> they are killed
               a node of the unit is gone                         -> they are killed

When a peer's machine has vanished, a rank waits in a collective. There it hears no signal, and it can answer no request
any more. Its pulse does not show that, because a long step is silent too: one that compiles kernels, or has a long
prompt. So the node asks its membership. A membership connection goes silent only when a machine or its network is gone,
because the kernel answers keepalives however busy the process is.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from runtime.errors import PeerLost
from runtime.worker.children import Child

__all__ = ["Drain", "end_at_once"]

BROKEN_S = 5.0  # assumed: ranks that leave together all end within it; a broken connection is made again within 0.5 s
STDERR = 2
WHY_IT_ENDS = {
    signal.SIGALRM: "the drain's time is over, so the node ends, and requests that are not answered by now fail",
    signal.SIGTERM: "the node was told by SIGTERM to end at once",
}


class Drain:
    """The drain of one node, from SIGTERM on and for `longest_s` seconds at most.

    `is_whole` returns whether the unit has all its nodes.
    """

    def __init__(
        self,
        ranks: Sequence[Child],
        longest_s: float,
        is_whole: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranks, self._longest_s, self._is_whole, self._now = ranks, longest_s, is_whole, now
        self._last_whole = now()
        self._has_begun = False

    def begin(self, _: int, __: FrameType | None) -> None:
        """Handle SIGTERM: tell the ranks to finish the requests that they have."""
        signal.signal(signal.SIGTERM, end_at_once)
        signal.signal(signal.SIGALRM, end_at_once)
        signal.setitimer(signal.ITIMER_REAL, self._longest_s)
        self._has_begun = True
        for rank in self._ranks:
            rank.process.terminate()

    def check(self) -> None:
        """Raises PeerLost if the unit has lost a node for good, which makes draining useless.

        Call this now and then.
        """
        if self._is_whole():
            self._last_whole = self._now()
        elif self._has_begun and self._now() - self._last_whole >= BROKEN_S:
            raise PeerLost("the unit has lost a node, so its requests cannot be answered; the drain ends here")


def end_at_once(signal_number: int, _: FrameType | None) -> None:
    """Handle a signal during a drain: log the reason and end this node; `wait_together` ends its ranks."""
    why = WHY_IT_ENDS[signal.Signals(signal_number)]
    os.write(STDERR, f"tidemill: {why}\n".encode())  # not print: the signal may have come in the middle of one
    sys.exit(128 + signal_number)

"""Wait for something in the cluster: with a deadline, a way to be cancelled, and progress for whoever watches."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Patience"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0  # bounds both the load on the API server and what waiting adds to the time


@dataclass(frozen=True)
class Patience:
    """The time that one operation may take, and who is told meanwhile. It starts when the wait does."""

    timeout_s: float
    cancelled: threading.Event
    report: Callable[[str], None]

    def wait_until_none(self, look: Callable[[], str | None], longest_pause_s: float = LONGEST_PAUSE_S) -> str | None:
        """Call `look` until it returns None. Return its last answer when time is up or the user has cancelled."""
        deadline = time.monotonic() + self.timeout_s
        pause, said = FIRST_PAUSE_S, None
        while (missing := look()) is not None:
            if missing != said:
                self.report(missing)
                said = missing
            left = deadline - time.monotonic()
            if left <= 0 or self.cancelled.wait(min(pause, left)):
                return missing
            pause = min(1.5 * pause, longest_pause_s)
        return None

    @property
    def end_reason(self) -> str:
        """The reason why a wait ended without success: `after 10 min`, `when cancelled`."""
        if self.cancelled.is_set():
            return "when cancelled"
        minutes, seconds = divmod(round(self.timeout_s), 60)
        parts = [f"{minutes} min" if minutes else "", f"{seconds} s" if seconds or not minutes else ""]
        return f"after {' '.join(filter(None, parts))}"

"""How long a command waits for its remote: one limit for all requests and all calls of git together.

A limit for each request would add up. A forge that trickles its answers, page by page, would hold a job for hours.
Planning does not count: it takes its time whatever the remote does.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["MOST_S", "TOO_SLOW", "TRY_LATER", "Patience"]

MOST_S = 600.0  # assumed: a fetch of a repository of manifests takes seconds, and so does each request
TOO_SLOW = f"the remote has kept this command waiting for {MOST_S:g} s in all"
TRY_LATER = "call it again once the remote is faster; what is done is not done twice"


@dataclass
class Patience:
    """The seconds for which a command goes on waiting for its remote."""

    left_s: float = MOST_S

    @contextmanager
    def spend(self) -> Iterator[float]:
        """Yield the seconds that a wait in this context may take. The time that it takes is subtracted from them."""
        begun = time.monotonic()
        try:
            yield self.left_s
        finally:
            self.left_s = max(0.0, self.left_s - (time.monotonic() - begun))

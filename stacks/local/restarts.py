"""When to restart processes that have ended: after a wait that doubles, as Kubernetes' kubelet does.

The first and the longest wait are those of Kubernetes' shortened back-off: 1 s and 60 s (Kubernetes docs, "Pod
Lifecycle", reduced container restart delay, feature gate ReduceDefaultCrashLoopBackOffDecay; by default they are 10 s
and 300 s, which is long for somebody who looks on). After a group has served for a while, its waits begin anew.
"""

from dataclasses import dataclass

__all__ = ["Backoff"]

FIRST_S, MOST_S = 1.0, 60.0
SOUND_S = 10.0  # assumed: a group that serves this long does not crash at its start


@dataclass(frozen=True)
class Backoff:
    """The waits before restarts of one group of processes. `serving_since` is None while the group does not serve."""

    num_failures: int = 0  # failures in a row
    serving_since: float | None = None

    @property
    def wait_s(self) -> float:
        """The seconds to wait between the group's latest end and its next start."""
        return min(FIRST_S * 2 ** (self.num_failures - 1), MOST_S) if self.num_failures else 0.0

    def note_serving(self, now: float) -> "Backoff":
        """Return the back-off after the group was seen serving at time `now`."""
        return self if self.serving_since is not None else Backoff(self.num_failures, now)

    def note_end(self, now: float) -> "Backoff":
        """Return the back-off after one more failure.

        The failure counts as the first in a row if the group had served for `SOUND_S` before.
        """
        was_sound = self.serving_since is not None and now - self.serving_since >= SOUND_S
        return Backoff(1 if was_sound else self.num_failures + 1)

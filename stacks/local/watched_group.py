"""One group of processes under watch: a unit's nodes, or a gateway. It knows when the group has to start again.

The supervisor decides what to do with a group. This class starts it, notices that it ended or hangs, and counts the
waits between two starts (`restarts.py`).
"""

import time
from dataclasses import dataclass, field

from stacks.local.processes import ProcessGroup
from stacks.local.restarts import Backoff

__all__ = ["WatchedGroup"]

HANGS_S = 3.0  # assumed: a rank that was given up by mistake calls again within half a second


@dataclass
class WatchedGroup:
    """A group of processes and its restarts. Times are those of time.monotonic.

    `due` is the time of the next start; None while the group runs. `answered_at` is when a gateway last answered since
    the group's start. `leaves_by` is set while an unwanted group stops: it is killed at that time, and is off once it
    is gone.
    """

    group: ProcessGroup
    backoff: Backoff = field(default_factory=Backoff)
    due: float | None = None
    hangs_since: float | None = None
    answered_at: float | None = None
    num_restarts: int = 0
    is_off: bool = False
    leaves_by: float | None = None

    @property
    def is_wanted(self) -> bool:
        """True if the group is neither off nor stopping."""
        return not self.is_off and self.leaves_by is None

    def arrive(self) -> str | None:
        """Start the group, which was off, with a fresh back-off. Return an error message if that failed, else None."""
        self.is_off, self.backoff = False, Backoff()
        return self.start()

    def start(self) -> str | None:
        """Start the group. If that fails, set the time of its next start and return an error message, else None."""
        try:
            self.group.start()
        except OSError as error:
            self.end()
            where = f" ({error.filename})" if error.filename else ""
            return f"{self.group.name} could not be started: {error.strerror or error}{where}"
        return None

    def leave(self, timeout_s: float) -> None:
        """Ask the group to finish its answers and end within `timeout_s`. The group is not started again.

        A second call can only bring the end forward.
        """
        self.due = self.hangs_since = None
        leaves_by = time.monotonic() + timeout_s
        self.leaves_by = leaves_by if self.leaves_by is None else min(self.leaves_by, leaves_by)
        self.group.terminate()

    def has_left(self) -> tuple[bool, str | None]:
        """Return (whether a stopping group is gone, what went wrong or None).

        A group that is late or hangs is killed.
        """
        assert self.leaves_by is not None
        is_running = self.group.is_running()
        if is_running and time.monotonic() < self.leaves_by and not self._has_hung():
            return False, None
        status, reason = self.group.find_first_failure() or (0, "")
        self.group.kill()
        self.is_off, self.leaves_by, self.hangs_since = True, None, None
        if is_running:
            return True, f"{self.group.name} did not end by itself"
        return True, reason if status else None

    def find_failure(self, *, hangs: bool) -> tuple[int, str] | None:
        """Return (exit status, reason) of a group that has ended; None while it runs.

        If a process `hangs`, or is suspended, for `HANGS_S`, the status is -1, and the reason says so.
        """
        if self._has_hung(hangs=hangs):
            return -1, f"{self.group.name} has a process that is stopped or hangs"
        return self.group.find_first_failure()

    def _has_hung(self, *, hangs: bool = False) -> bool:
        """Return whether a process of the group has hung or been suspended for `HANGS_S`.

        `hangs` says that a process hangs now. Record in `hangs_since` when that began.
        """
        now = time.monotonic()
        self.hangs_since = (self.hangs_since or now) if hangs or self.group.is_stopped() else None
        return self.hangs_since is not None and now - self.hangs_since >= HANGS_S

    def end(self) -> None:
        """Kill what is left of the group, and set the time of its next start."""
        now = time.monotonic()
        self.group.kill()
        self.hangs_since = self.answered_at = None
        self.backoff = self.backoff.note_end(now)
        self.due = now + self.backoff.wait_s

    def is_due(self) -> bool:
        """Return whether the group is down and the time of its next start has come."""
        return self.due is not None and time.monotonic() >= self.due

    def start_if_due(self) -> str | None:
        """Restart the group if it is due. Return an error message if that failed, else None."""
        if not self.is_due():
            return None
        self.due = None
        why = self.start()
        self.num_restarts += why is None
        return why

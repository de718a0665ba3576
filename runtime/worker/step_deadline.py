"""The end of a rank whose step does not end, so that its unit can be started again.

Ranks that wait for it end by themselves: their collectives have a deadline (`expert_parallel/group.py`). This one is
for the rank at fault, and for a unit of one rank, which waits for nobody. On GPUs it is also for ranks that wait in
NCCL: torch's watchdog sees no exchange of a replay, and of one that was issued it had not ended the process 35 s after
it had found it too slow (H100, torch 2.11, `tests/gpu/quarter_hour/killed_rank.py`).

A rank is watched from its first step on. What compiles kernels has been computed by then.

Looks are counted, not seconds: a process that was stopped has one look for that time.
"""

import os
import threading
import time
from collections.abc import Callable

from runtime.worker.pulse import Pulse

__all__ = ["StepDeadline", "start_step_deadline"]

LOOK_S = 1.0
STDERR = 2
DEADLINE_S = 150  # the gateway's time for CPUs: beyond the 120 s that a collective may take


def start_step_deadline(pulse: Pulse, who: str) -> None:
    """Watch the rank's loop from a thread of its own, for as long as the process lives."""
    deadline = StepDeadline(pulse, lambda: _end(who))

    def keep_looking() -> None:
        while True:
            time.sleep(LOOK_S)
            deadline.look()

    threading.Thread(target=keep_looking, name="step deadline", daemon=True).start()


class StepDeadline:
    """Calls `end` once the loop, which has begun, has not turned for `DEADLINE_S`."""

    def __init__(self, pulse: Pulse, end: Callable[[], None]) -> None:
        self._pulse, self._end = pulse, end
        self._num_turns = 0
        self._looks = 0

    def look(self) -> None:
        """Look whether the loop has turned since the last look. Call this every `LOOK_S`."""
        stands_still = self._pulse.num_turns == self._num_turns > 0
        self._num_turns = self._pulse.num_turns
        self._looks = self._looks + 1 if stands_still else 0
        if self._looks * LOOK_S >= DEADLINE_S:
            self._end()


def _end(who: str) -> None:
    os.write(STDERR, f"tidemill: a step of {who} has taken over {DEADLINE_S} s, so the rank ends\n".encode())
    os._exit(1)  # the main thread hears nothing

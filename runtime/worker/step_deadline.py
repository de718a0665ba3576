"""Ends a rank whose step does not end, so that its unit can be restarted.

Ranks that wait for it end by themselves, because their collectives have a deadline (`expert_parallel/group.py`). This
deadline is for the rank at fault, and for a unit of one rank, which waits for nobody. On GPUs it is also for ranks that
wait in NCCL. torch's watchdog does not see the exchanges of a replayed step. For an issued exchange it found the
timeout, but had not ended the process 35 s later (H100, torch 2.11, `tests/gpu/quarter_hour/killed_rank.py`).

A rank is watched from its first turn on. By then the steps that compile kernels are over.

It counts looks, not seconds, so a process that was stopped for a while counts that time as one look.
"""

import os
import threading
import time
from collections.abc import Callable

from runtime.worker.pulse import Pulse

__all__ = ["StepDeadline", "start_step_deadline"]

LOOK_S = 1.0
STDERR = 2
DEADLINE_S = 150  # as the gateway's stall time-out for CPUs: more than the 120 s that a collective may take


def start_step_deadline(pulse: Pulse, who: str) -> None:
    """Watch the rank's loop from a thread of its own, for as long as the process lives."""
    deadline = StepDeadline(pulse, lambda: _end(who))

    def keep_looking() -> None:
        while True:
            time.sleep(LOOK_S)
            deadline.look()

    threading.Thread(target=keep_looking, name="step deadline", daemon=True).start()


class StepDeadline:
    """Calls `end` when the loop has begun and then has not turned for `DEADLINE_S`."""

    def __init__(self, pulse: Pulse, end: Callable[[], None]) -> None:
        self._pulse, self._end = pulse, end
        self._num_turns = 0
        self._looks = 0

    def look(self) -> None:
        """End the process if the loop has not turned for `DEADLINE_S`. Call this every `LOOK_S` seconds.

        A loop that has not begun yet is not ended.
        """
        stands_still = self._pulse.num_turns == self._num_turns > 0
        self._num_turns = self._pulse.num_turns
        self._looks = self._looks + 1 if stands_still else 0
        if self._looks * LOOK_S >= DEADLINE_S:
            self._end()


def _end(who: str) -> None:
    os.write(STDERR, f"tidemill: a step of {who} has taken over {DEADLINE_S} s, so the rank ends\n".encode())
    os._exit(1)  # the main thread is stuck and would handle no signal

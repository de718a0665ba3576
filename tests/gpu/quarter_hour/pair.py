"""The ranks of a small unit as processes on one machine: where they meet, and an end for all of them."""

import subprocess
import time
from collections.abc import Sequence

__all__ = ["ADDRESS", "end", "until_one_fails"]

ADDRESS = "127.0.0.1"
POLL_S = 0.05


def until_one_fails(ranks: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[int | None]:
    """Wait until all have ended well, one has not, or the time is over. Return their statuses, None while they run."""
    deadline = time.monotonic() + seconds
    while None in (statuses := [rank.poll() for rank in ranks]) and not any(statuses):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return statuses


def end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill those that still run."""
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.wait()

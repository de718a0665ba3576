"""Python imports this at its start, for `straggler.py`: a decode rank sleeps in each step while a file says how long.

The file is `$PLANTED_SLEEPS/PLACE.LOCAL_RANK`, with the seconds.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path


def plant(sleep_s: Path) -> None:
    """Let each decode step of this process sleep first."""
    from runtime.serving.decode import DecodePhase

    compute = DecodePhase.step

    def step(self: DecodePhase) -> None:
        with suppress(FileNotFoundError):
            time.sleep(float(sleep_s.read_text()))
        compute(self)

    DecodePhase.step = step  # type: ignore[method-assign]


def after(flag: str) -> str:
    """Return what follows the flag in the call."""
    return sys.orig_argv[sys.orig_argv.index(flag) + 1]


if "PLANTED_SLEEPS" in os.environ and "--local-rank" in sys.orig_argv:
    plant(Path(os.environ["PLANTED_SLEEPS"]) / f"{after('--place')}.{after('--local-rank')}")

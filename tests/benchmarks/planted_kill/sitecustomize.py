"""Python imports this at its start, for `killed_switch.py`: a decode rank strikes itself at a stage of a switch.

The file is `$PLANTED_KILLS/PLACE.LOCAL_RANK.STAGE`, with the number of the signal and the times that this rank passes
the stage before. Whoever strikes removes it first.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STAGES = {
    "document": ("runtime.expert_parallel.epochs.switch", "Switch", "_receive_document", False),
    "fetching": ("runtime.expert_parallel.epochs.staging", "Staging", "fetch", False),
    "staged": ("runtime.expert_parallel.epochs.staging", "Staging", "fetch", True),
    "exchanged": ("runtime.expert_parallel.epochs.staging", "Staging", "_exchange", True),
    "following": ("runtime.expert_parallel.epochs.staging", "Staging", "take_effect", True),
    "checking": ("runtime.expert_parallel.epochs.switch", "Switch", "_check", False),
    "ending": ("runtime.expert_parallel.epochs.switch", "Switch", "_end", False),
    "ended": ("runtime.expert_parallel.epochs.switch", "Switch", "_end", True),
}  # stage -> module, class, function, and whether the stage is at the function's end


def plant(folder: Path, rank: str) -> None:
    """Let this process look for its file at every stage."""
    for stage, (module, owner, name, is_at_end) in STAGES.items():
        holder = getattr(__import__(module, fromlist=[owner]), owner)
        setattr(holder, name, striking(folder / f"{rank}.{stage}", getattr(holder, name), is_at_end))


def striking(planted: Path, function: Callable[..., Any], is_at_end: bool) -> Callable[..., Any]:
    """Return the function with a strike before it or after it."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if not is_at_end:
            strike(planted)
        found = function(*arguments)
        if is_at_end:
            strike(planted)
        return found

    return call


def strike(planted: Path) -> None:
    """Strike if it is time."""
    if not planted.exists():
        return
    signal_number, passes = map(int, planted.read_text().split())
    if passes:
        planted.write_text(f"{signal_number} {passes - 1}")
        return
    planted.unlink()
    os.kill(os.getpid(), signal_number)


def after(flag: str) -> str:
    """Return what follows the flag in the call."""
    return sys.orig_argv[sys.orig_argv.index(flag) + 1]


if "PLANTED_KILLS" in os.environ and "--local-rank" in sys.orig_argv and "decode" in after("--launch"):
    plant(Path(os.environ["PLANTED_KILLS"]), f"{after('--place')}.{after('--local-rank')}")

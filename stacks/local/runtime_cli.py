"""The runtime's commands, `generate` and `checkpoint`, run as processes; their errors are reported like ours."""

import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from planner.command.run import wants_json
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from stacks.local.deployment import require_runtime
from stacks.local.errors import LocalError

__all__ = ["run_in_runtime"]


def run_in_runtime(words: Sequence[str]) -> int:
    """Run a command of the runtime as a process and return its exit status: 0, 1 or 2. Any other status becomes 1.

    Raises TidemillError if the output is to be JSON. Otherwise the runtime itself has printed the error.
    """
    require_runtime()
    prints_json = wants_json(words)
    command = [sys.executable, "-m", "runtime", *words]
    done = subprocess.run(command, check=False, text=True, stderr=subprocess.PIPE if prints_json else None)
    status = done.returncode if done.returncode in (0, 2) else 1
    if prints_json and status:
        _raise_runtime_error(words, done.stderr, status)
    return status


def _raise_runtime_error(words: Sequence[str], stderr: str, status: int) -> NoReturn:
    *before, last = stderr.strip().splitlines() or ["tidemill: it was ended"]
    print("".join(f"{line}\n" for line in before), end="", file=sys.stderr)
    said = last.removeprefix("tidemill: ")
    name = "checkpoint digest" if list(words[:2]) == ["checkpoint", "digest"] else words[0]
    fix = f"see tidemill {name} --help"
    if status == 2:
        reason = said.removeprefix("was called wrongly; ").removesuffix(f"; {fix} [S900]")
        raise CallError([Finding("", None, "S900 was called wrongly", reason, fix).at("tidemill")])
    raise LocalError(f"R109 {name} failed", said, "correct what is named, and call it again")

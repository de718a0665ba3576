"""Child processes that end together: when one dies, the others are killed; when the parent dies, all die.

A node uses this for its ranks, and so does `generate`. The last line that a child writes to stderr says why it died.
Exit status `PEER_LOST` marks a death that only followed another one, so that the report names the cause and not the
echo. Nothing is restarted.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from runtime.errors import RuntimeFailure

__all__ = ["PEER_LOST", "Child", "ChildDied", "die_with_parent", "kill", "wait_together"]

PEER_LOST = 75
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns with a stack of 2 KB about each frame that its store cannot read
CAUSE_GRACE_S = 1.0  # the time in which another death may turn out to be the cause of the first one
POLL_S = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ChildDied(RuntimeFailure):
    """A child process ended before it was asked to.

    `is_echo` says that the child ended only because it lost a peer, so that another child's death is the cause.
    """

    def __init__(self, sentence: str, is_echo: bool) -> None:
        super().__init__(sentence)
        self.is_echo = is_echo


class Child:
    """The process `python -m runtime ARGUMENTS`. Its stderr is passed on line by line under its name."""

    def __init__(self, name: str, arguments: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        command = [sys.executable, "-m", "runtime", *arguments, "--parent", str(os.getpid())]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**QUIET, **os.environ, **(environment or {})},
        )
        self._last_line = ""
        self._relay = threading.Thread(target=self._pass_on_stderr, daemon=True)
        self._relay.start()

    def describe_death(self) -> str:
        """Return the reason why the child ended, as a clause."""
        status = self.process.returncode
        if status < 0:
            return f"{self.name} was killed by {signal.Signals(-status).name}"
        self._relay.join(timeout=1)
        return f"{self.name} ended with status {status}: {self._last_line or 'it said nothing'}"

    def _pass_on_stderr(self) -> None:
        for line in self.process.stderr or ():
            self._last_line = line.strip().removeprefix("tidemill: ") or self._last_line
            print(f"[{self.name}] {line}", end="", file=sys.stderr, flush=True)


def wait_together(children: Sequence[Child], check: Callable[[], None] = lambda: None) -> None:
    """Wait until all children end with status 0.

    If a child fails, kill the other children and raise ChildDied, which names the cause. `check` is called now and
    then. If it raises, the children are killed too.
    """
    try:
        while not (dead := [child for child in children if child.process.poll()]):
            check()
            if all(child.process.returncode == 0 for child in children):
                return
            time.sleep(POLL_S)
        cause = _find_cause(children, dead)
        raise ChildDied(cause.describe_death(), is_echo=cause.process.returncode == PEER_LOST)
    finally:
        kill(children)


def kill(children: Sequence[Child]) -> None:
    """End the children that still run, and reap them."""
    for child in children:
        child.process.kill()
    for child in children:
        child.process.wait()


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when process `parent` ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def _find_cause(children: Sequence[Child], dead: list[Child]) -> Child:
    """Return the child whose death made the other children end.

    That death may be seen last, so wait briefly for it.
    """
    deadline = time.monotonic() + CAUSE_GRACE_S
    while all(child.process.returncode == PEER_LOST for child in dead) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        dead = [child for child in children if child.process.poll()]
    return next((child for child in dead if child.process.returncode != PEER_LOST), dead[0])

"""Daemons of a test cluster: started with a log and a recorded pid, awaited with a deadline, gone with their owner.

Whatever ends the tests ends the daemons: the kernel kills them when the thread that started them dies
(`setpriv --pdeathsig`), so there is nothing to clean up after a SIGKILL.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Daemon", "Daemons", "NotReady"]

LOG_TAIL_LINES = 15


class NotReady(AssertionError):
    """A daemon ended, or its deadline passed; the message holds the last lines of every log."""


@dataclass
class Daemon:
    """One started program. `<name>.pid` and `<name>.log` in the cluster's folder are its own."""

    name: str
    process: subprocess.Popen
    log: Path

    def tail(self) -> str:
        """The last lines of its log, under its name and state."""
        state = "running" if self.process.poll() is None else f"ended with status {self.process.returncode}"
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"--- {self.name}, {state}, {self.log}:", *lines])


@dataclass
class Daemons:
    """All daemons of one cluster, in the order in which they were started."""

    folder: Path
    started: list[Daemon] = field(default_factory=list)

    def start(self, name: str, *command: str | Path) -> None:
        """Run `command` in a process group of its own: Ctrl-C is for the tests, which then stop it."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        (self.folder / f"{name}.pid").write_text(f"{process.pid}\n")
        self.started.append(Daemon(name, process, log))

    def wait_until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll `ready` until it is true. Raises NotReady at the deadline, and at once when a daemon has ended."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if any(each.process.poll() is not None for each in self.started):
                raise NotReady(self._said(f"a daemon ended before {what}"))
            if time.monotonic() > deadline:
                raise NotReady(self._said(f"not within {timeout_s:g} s: {what}"))
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill, the last one first: all their state is thrown away."""
        for each in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
            (self.folder / f"{each.name}.pid").unlink()
        self.started.clear()

    @contextlib.contextmanager
    def running(self) -> Iterator["Daemons"]:
        """Stopped at the end, whatever happens before."""
        try:
            yield self
        finally:
            self.stop()

    def _said(self, problem: str) -> str:
        return "\n".join([problem, *(each.tail() for each in self.started)])

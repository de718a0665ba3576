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
LOG_LINE_LENGTH = 300


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
        return f"--- {self.name}, {state}, {self.log}:\n{_tail(self.log)}"


@dataclass
class Daemons:
    """All daemons of one cluster, in the order in which they were started.

    Those started from a copy (`dataclasses.replace`) with another `inside` are in the same list.
    """

    folder: Path
    started: list[Daemon] = field(default_factory=list)
    inside: tuple[str, ...] = ()  # what to put before each command, to run it in another namespace
    environment: dict[str, str] = field(default_factory=dict)  # besides our own

    def start(self, name: str, *command: str | Path) -> int:
        """Run `command` in a process group of its own: Ctrl-C is for the tests, which then stop it. Its pid."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.inside, *command],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        (self.folder / f"{name}.pid").write_text(f"{process.pid}\n")
        self.started.append(Daemon(name, process, log))
        return process.pid

    def wait_until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll `ready` until it is true. Raises NotReady at the deadline, and at once when a daemon has ended."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if any(each.process.poll() is not None for each in self.started):
                raise NotReady(f"a daemon ended before {what}\n{self.said()}")
            if time.monotonic() > deadline:
                raise NotReady(f"not within {timeout_s:g} s: {what}\n{self.said()}")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill the one of that name: from then on it is meant to be gone."""
        (daemon,) = (each for each in self.started if each.name == name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait()
        (self.folder / f"{name}.pid").unlink()
        self.started.remove(daemon)

    def stop(self) -> None:
        """Kill all, the last one first: all their state is thrown away."""
        for each in self.started[::-1]:
            self.kill(each.name)

    @contextlib.contextmanager
    def running(self) -> Iterator["Daemons"]:
        """Stopped at the end, whatever happens before."""
        try:
            yield self
        finally:
            self.stop()

    def said(self) -> str:
        """The last lines of every log in the folder, also of what a daemon has started or of one that was killed."""
        own = {each.log for each in self.started}
        others = (path for path in sorted(self.folder.glob("*.log")) if path not in own)
        return "\n".join([*(each.tail() for each in self.started), *(f"--- {path}:\n{_tail(path)}" for path in others)])


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join(line[:LOG_LINE_LENGTH] for line in lines)

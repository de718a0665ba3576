"""Processes that start and end together: the nodes of a unit, or the gateway alone.

A group is started as a whole and ended as a whole: a unit cannot compute without one of its ranks, and ranks of two
starts cannot join each other. If a start fails in the middle, nothing is left running. The processes die with the
supervisor, however it dies, because the runtime asks the kernel for that (`--parent`); a node's ranks die with their
node in the same way, stopped ones too.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stacks.local.layout import NodeProcess

__all__ = [
    *("GONE", "PEER_LOST", "STOPPED", "ProcessGroup", "start_ticks", "exit_status", "has_ended", "explain_end"),
    *("open_log", "process_state", "terminate"),
]

PEER_LOST = 75  # the runtime's exit status for "another rank went first"
CAUSE_GRACE_S = 3.0  # the node that caused a failure may end so long after one that only noticed it
GONE_WITHIN_S = 5.0  # assumed: a rank's memory takes a while to free; zombies may stay for longer
POLL_S = 0.05
LAST_BYTES = 2**16  # assumed: enough for a process's last sentence; a traceback is a tenth of it
GONE, STOPPED = "", "T"  # of `process_state`
STARTTIME = 22 - 3  # index in `_stat`: proc(5) counts fields from 1, and the state is field 3


class ProcessGroup:
    """The processes of `members`, started and ended together. Each writes its log to `folder`."""

    def __init__(self, name: str, members: Sequence[NodeProcess], folder: Path) -> None:
        self.name, self._members, self._folder = name, members, folder
        self._handles: dict[NodeProcess, subprocess.Popen[bytes]] = {}
        self._log_begins: dict[NodeProcess, int] = {}
        self._first_died_at: float | None = None

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, once they are started."""
        return [handle.pid for handle in self._handles.values()]

    def start(self) -> None:
        """Start every process, each in a process group of its own, so that Ctrl-C reaches only the supervisor.

        Raises OSError if one cannot be started; then none of them runs.
        """
        self._first_died_at, self._handles = None, {}
        try:
            for member in self._members:
                self._handles[member] = self._start_process(member)
        except OSError:
            self.kill()
            self._handles = {}
            raise

    def find_first_failure(self) -> tuple[int, str] | None:
        """Return (exit status, reason) of the process that caused the group's failure; None while all processes run.

        If only processes that lost a peer have ended, return None for CAUSE_GRACE_S: the process that caused the loss
        may still end.
        """
        ended = {member: handle.returncode for member, handle in self._handles.items() if handle.poll() is not None}
        if not ended:
            return None
        now = time.monotonic()
        self._first_died_at = self._first_died_at or now
        member, status = _find_cause(ended)
        if status == PEER_LOST and now - self._first_died_at < CAUSE_GRACE_S:
            return None
        return status, explain_end(member.name, status, self._log(member), self._log_begins[member])

    def is_stopped(self) -> bool:
        """Return whether any of the processes is suspended, as by SIGSTOP."""
        return any(process_state(pid) == STOPPED for pid in self.pids)

    def kill(self) -> None:
        """Kill every process and its children, suspended ones too, and reap them.

        Wait until the whole process groups are gone, so that ports are free: a node's ranks outlive the node for a
        moment.
        """
        for handle in self._handles.values():
            handle.kill()
        deadline = time.monotonic() + GONE_WITHIN_S
        while (self.is_running() or any(map(_has_members, self.pids))) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def terminate(self) -> None:
        """Ask every process to end by SIGTERM."""
        for handle in self._handles.values():
            handle.terminate()

    def is_running(self) -> bool:
        """Return whether any of the processes is still running."""
        return any(handle.poll() is None for handle in self._handles.values())

    def _start_process(self, member: NodeProcess) -> "subprocess.Popen[bytes]":
        is_first = member not in self._log_begins
        with open(open_log(self._log(member), is_new=is_first), "ab") as log:
            self._log_begins[member] = os.fstat(log.fileno()).st_size
            return subprocess.Popen(
                [*member.command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _log(self, member: NodeProcess) -> Path:
        return self._folder / f"{member.name}.log"


def open_log(log: Path, *, is_new: bool) -> int:
    """Return a descriptor that appends to a log file. The file is emptied first if `is_new`.

    Each line goes to the log's present end, even if somebody has truncated the file. Raises OSError if the log
    cannot be opened.
    """
    emptied = os.O_TRUNC if is_new else 0
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | emptied, 0o600)


def explain_end(name: str, status: int, log: Path, begin: int = 0) -> str:
    """Return why a process ended: the last message of `tidemill` in its log, or the signal that killed it.

    The process's own output begins at byte `begin` of the log, unless the log was truncated since.
    """
    if status < 0:
        return f"{name} was killed by {signal.Signals(-status).name}; see {log}"
    try:
        lines = _log_tail(log, begin).decode(errors="replace").splitlines()
    except OSError as error:
        return f"{name} ended with status {status}; {log} cannot be read: {error.strerror}"
    said = next((line for line in reversed(lines) if line.startswith("tidemill: ")), None)
    return f"{name} ended with status {status}; see {log}" if said is None else said.removeprefix("tidemill: ")


def process_state(pid: int) -> str:
    """Return the letter of the process's state (proc(5), `stat`); "" if the process is gone or a zombie."""
    letter, *_ = _stat(pid) or [GONE]
    return GONE if letter in "ZX" else letter


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot (proc(5), `starttime`).

    Return None if the process is gone. The kernel reuses process ids, but not within a tick, so id and ticks together
    identify a process.
    """
    fields = _stat(pid)
    return int(fields[STARTTIME]) if fields else None


def exit_status(child: int) -> int | None:
    """Return the exit status of a child that is ending; it is negative for a signal.

    Return None if the child has not ended shortly after the call. The child is not reaped, so its process id is not
    reused.
    """
    deadline = time.monotonic() + GONE_WITHIN_S
    while (ended := _wait_status(child)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def has_ended(child: int) -> bool:
    """Return whether a child process has ended, without reaping it."""
    return _wait_status(child) is not None


def terminate(pid: int, began: int) -> None:
    """Ask a process to end, even if it is suspended; do nothing if it is gone.

    The process has the id `pid` and began at tick `began`. Another process that has the same id now is left alone.
    """
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)  # it stays this process's, even if that ends before the signal
        try:
            if start_ticks(pid) == began:
                signal.pidfd_send_signal(process, signal.SIGTERM)
                signal.pidfd_send_signal(process, signal.SIGCONT)
        finally:
            os.close(process)


def _wait_status(child: int) -> os.waitid_result | None:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _log_tail(log: Path, begin: int) -> bytes:
    """Return the last bytes of a log, at most LAST_BYTES, and none before byte `begin` (unless the log was truncated).

    Raises OSError if the log cannot be read.
    """
    with log.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(begin if begin <= size else 0, size - LAST_BYTES))
        return file.read(LAST_BYTES)


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's `stat` (proc(5)), beginning with its state; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _has_members(process_group: int) -> bool:
    """Return whether the process group still has a process."""
    try:
        os.killpg(process_group, 0)
    except ProcessLookupError:
        return False
    return True


def _find_cause(ended: Mapping[NodeProcess, int]) -> tuple[NodeProcess, int]:
    """Return the process that caused the failure, with its exit status, from `ended` (process -> exit status).

    The cause is the first process, in the group's order, that did not end with PEER_LOST; if all did, the first of
    them.
    """
    return min(ended.items(), key=lambda death: death[1] == PEER_LOST)

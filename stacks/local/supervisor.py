"""Owns a deployment's processes: starts them, watches them, keeps the record true, and ends them all.

A unit that fails before everything was ready ends the whole start, with the reason; one that fails later is recorded as
failed, and one that has drained as ended, and the rest goes on. Nothing is restarted. The processes die with the
supervisor, however it dies, because the runtime asks the kernel for that (`--parent`).
"""

import ctypes
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stacks.local.layout import Layout, NodeProcess
from stacks.local.record import Record, RunFolder, UnitRecord

__all__ = ["end_with", "supervise"]

POLL_S = 0.2
STOP_GRACE_S = 8.0  # longer than the gateway's own grace for running answers
CAUSE_GRACE_S = 3.0  # how long the node that caused a failure may take to say so after one that only noticed
PEER_LOST = 75  # the runtime's exit status for "another rank went first"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_RankState = tuple[str, float]  # and how much of its tensors it has loaded
ORDER = ("starting", "loading", "joining", "ready")


def supervise(folder: RunFolder, layout: Layout, record: Record, started: Callable[[], None]) -> None:
    """Run the deployment until SIGTERM or SIGINT, or until it cannot go on. Raise LocalError when one runs already.

    `started` is called as soon as this process is the one that runs it, and the record says so.
    """
    with folder.locked():
        supervisor = _Supervisor(folder, layout, replace(record, supervisor=os.getpid()))
        started()
        supervisor.run()


def end_with(parent: int) -> None:
    """Ask the kernel to stop this process, as Ctrl-C would, when process `parent` ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor:
    def __init__(self, folder: RunFolder, layout: Layout, record: Record) -> None:
        self._folder, self._layout, self._record = folder, layout, record
        self._began = time.monotonic()
        self._processes: dict[NodeProcess, subprocess.Popen[bytes]] = {}
        self._failed_at: dict[str, float] = {}
        self._stop_requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        folder.write(record)

    def run(self) -> None:
        try:
            for process in (self._layout.gateway, *self._layout.nodes):
                self._processes[process] = _start(process, self._folder.path)
            while not self._stop_requested and self._record.failure is None:
                self._watch()
                time.sleep(POLL_S)
        finally:
            _stop(list(self._processes.values()))

    def _request_stop(self, number: int, frame: object) -> None:
        self._stop_requested = True

    def _watch(self) -> None:
        """Look once at everything, and record what has changed."""
        record = self._record
        report = _ask_gateway(self._layout, self._processes[self._layout.gateway].pid)
        if report is not None:
            record = self._with_states(self._with_stage(record, "gateway"), report)
        record = self._with_deaths(record)
        for reached in ORDER[1:]:
            if all(unit.state in ORDER and ORDER.index(unit.state) >= ORDER.index(reached) for unit in record.units):
                record = self._with_stage(record, reached)
        if record != self._record:
            self._folder.write(record)
            self._record = record

    def _with_stage(self, record: Record, stage: str) -> Record:
        if stage in record.stages:
            return record
        return replace(record, stages=record.stages | {stage: round(time.monotonic() - self._began, 2)})

    def _with_states(self, record: Record, report: Mapping[str, Sequence[_RankState]]) -> Record:
        for unit in record.units:
            if unit.state not in ("ended", "failed"):
                record = record.with_unit(_as_reported(unit, report.get(unit.name, ())))
        return record

    def _with_deaths(self, record: Record) -> Record:
        """Record which units are gone. A dead gateway, or a unit that never became ready, ends the deployment."""
        dead = {process: handle.returncode for process, handle in self._processes.items() if handle.poll() is not None}
        if self._layout.gateway in dead:
            return replace(record, failure=self._last_words(self._layout.gateway, dead[self._layout.gateway]))
        for unit in record.units:
            ended = {process: status for process, status in dead.items() if process.unit == unit.name}
            if ended:
                self._failed_at.setdefault(unit.name, time.monotonic())
                state = "failed" if any(ended.values()) else "ended"  # after a drain
                gone = replace(unit, state=state, reason=self._last_words(*_cause(ended)))
                record = record.with_unit(gone)
                if "ready" not in record.stages and self._cause_is_known(unit.name, ended):
                    return replace(record, failure=gone.reason)
        return record

    def _cause_is_known(self, unit: str, ended: Mapping[NodeProcess, int]) -> bool:
        waited = time.monotonic() - self._failed_at[unit]
        return any(status != PEER_LOST for status in ended.values()) or waited > CAUSE_GRACE_S

    def _last_words(self, process: NodeProcess, status: int) -> str:
        return last_words(process.name, status, _log(process, self._folder.path))


def last_words(name: str, status: int, log: Path) -> str:
    """Say why a process ended: its own last sentence in its log, unless a signal left it no time for one."""
    if status < 0:
        return f"{name} was killed by {signal.Signals(-status).name}; see {log}"
    lines = log.read_text(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith("tidemill: ")), None)
    return f"{name} ended with status {status}; see {log}" if said is None else said.removeprefix("tidemill: ")


def _start(process: NodeProcess, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process in a group of its own, so that Ctrl-C in the terminal reaches only the supervisor.

    The supervisor then stops the others in order.
    """
    with _log(process, folder).open("wb") as log:
        return subprocess.Popen(
            [*process.command, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_GRACE_S
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(ended: Mapping[NodeProcess, int]) -> tuple[NodeProcess, int]:
    """Return the death that explains the others: the first that is not itself an echo."""
    return min(ended.items(), key=lambda death: death[1] == PEER_LOST)


def _ask_gateway(layout: Layout, pid: int) -> dict[str, list[_RankState]] | None:
    """Return the rank states of each known unit; None while our gateway does not answer.

    An answer on its port from any other program does not count.
    """
    connection = http.client.HTTPConnection(layout.gateway_host, layout.http_port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        report: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    if report.get("pid") != pid:
        return None
    return {unit["unit"]: [(rank["state"], rank["loaded"]) for rank in unit["ranks"]] for unit in report["units"]}


def _as_reported(unit: UnitRecord, ranks: Sequence[_RankState]) -> UnitRecord:
    """Return the unit at its slowest rank's stage. When a rank is lost or ends, so is the whole unit.

    How a unit that drains has ended, its nodes tell.
    """
    rank_states = [state for state, _ in ranks]
    if "lost" in rank_states and unit.state == "draining":
        return unit
    if "lost" in rank_states:
        reason = f"{unit.name} lost {rank_states.count('lost')} of its {unit.ranks} ranks"
        return replace(unit, state="failed", reason=reason)
    if "draining" in rank_states:
        return replace(unit, state="draining")
    if len(rank_states) < unit.ranks:
        return replace(unit, state="starting")
    return replace(unit, state=min(rank_states, key=ORDER.index), loaded=min(loaded for _, loaded in ranks))


def _log(process: NodeProcess, folder: Path) -> Path:
    return folder / f"{process.name}.log"

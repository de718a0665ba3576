"""Owns a deployment's processes: starts them, watches them, keeps the record true, and ends them all.

A unit that fails before everything was ready ends the whole start, with the reason. One that ends or hangs later is
recorded as failed and started again as a whole (`restarts.py`), like a gateway; the rest goes on. If that start fails,
it is tried again later. If this process itself fails at something, such as writing the record, it tries again at every
look, and no unit ends because of it. However it ends, except by SIGKILL, the record says so.

Launch files that somebody removes are written back, since restarted processes read them.

When a day is played (`played_day.py`), units start and stop: one that stops drains first, as in a cluster, and is off
when its processes have ended. The play's last act ends the deployment.
"""

import ctypes
import errno
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from stacks.local.certificates import Certificates, now
from stacks.local.layout import SERVED_TOKENIZER, SERVED_WEIGHTS, Layout
from stacks.local.played_day import advance
from stacks.local.processes import ProcessGroup, start_ticks
from stacks.local.record import ORDER, GatewayRecord, Record, UnitRecord
from stacks.local.reports import (
    GatewayReport,
    RankReport,
    ask_gateway,
    has_hung_rank,
    is_refused,
    merge_reports,
    update_unit,
)
from stacks.local.run_folder import RunFolder
from stacks.local.watched_group import WatchedGroup

__all__ = ["end_with_parent", "supervise"]

POLL_S = 0.2
BEAT_S = 3.0  # assumed: often enough to show that this process still works
BROKEN = "its supervisor failed; see supervisor.log"
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
STOP_GRACE_S = 8.0  # seconds to end after the drain
UNANSWERED_S = 30.0  # assumed: even on a busy machine a gateway answers within it
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def supervise(folder: RunFolder, layout: Layout, record: Record, on_started: Callable[[], None]) -> int:
    """Run the deployment until a signal of `ENDINGS`, or until it cannot go on.

    This process must hold the folder's lock.

    `on_started` is called once the record names this process as the supervisor. Return 0, or the errno of a failure
    to write the record before everything was ready: without a record nobody could learn the deployment's state.
    """
    began = start_ticks(os.getpid())
    assert began is not None
    record = replace(record, supervisor=os.getpid(), supervisor_began=began)
    try:
        supervisor = _Supervisor(folder, layout, record)
    except OSError as error:
        with suppress(OSError):  # the log may be on a full disk
            traceback.print_exc()
        return error.errno or errno.EIO
    on_started()
    return supervisor.run()


def end_with_parent(parent: int) -> None:
    """Ask the kernel to send this process SIGTERM when the process `parent` ends, for whatever reason."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor:
    """Starts, watches and ends the processes of one deployment, and keeps its record true."""

    def __init__(self, folder: RunFolder, layout: Layout, record: Record) -> None:
        self._folder, self._layout, self._record = folder, layout, record
        self._began = time.monotonic()
        shutil.rmtree(folder.certificates, ignore_errors=True)
        self._certificates = Certificates(layout.identities, now())
        self._gateways = {
            gateway.name: WatchedGroup(ProcessGroup(gateway.name, [gateway.process], folder.path))
            for gateway in layout.gateways
        }
        self._units = {
            unit.name: WatchedGroup(
                ProcessGroup(unit.name, [node for node in layout.nodes if node.unit == unit.name], folder.path)
            )
            for unit in record.units
        }
        for unit in record.units:
            self._units[unit.name].is_off = unit.state == "off"
        self._note_live_maps = _live_maps(folder, layout)
        self._files = {name: text.encode() for name, text in layout.files.items()}  # and what gateways write
        self._unwritable = 0  # errno of a failed write of the record, which ends the start
        self._num_stops = 0
        self._stopped_by: str | None = None
        for number in ENDINGS:
            signal.signal(number, self._request_stop)
        self._write()

    def run(self) -> int:
        failure: str | None = BROKEN
        try:
            self._start_all()
            while not self._num_stops and not self._is_over():
                self._watch()
                time.sleep(POLL_S)
            failure = self._record.failure
        finally:
            self._record = replace(self._record, failure=failure)
            self._stop()
        return self._unwritable

    def _start_all(self) -> None:
        """Start all wanted gateways and units.

        If one fails to start, record that as the deployment's failure and return.
        """
        for watched in (*self._gateways.values(), *self._units.values()):
            why = watched.start() if watched.is_wanted else None
            if why is not None:
                self._record = replace(self._record, failure=why)
                return

    def _is_over(self) -> bool:
        """Whether the deployment cannot go on, or the day that is played is over."""
        if self._unwritable or self._record.failure is not None:
            return True
        return self._record.day is not None and self._record.day.is_over

    def _request_stop(self, number: int, frame: object) -> None:
        self._num_stops += 1
        self._stopped_by = signal.Signals(number).name

    def _stop(self) -> None:
        """Stop the gateways once they have finished their answers, then the units, which have no work left.

        A second request to stop ends everything at once.
        """
        gateways = [watched.group for watched in self._gateways.values()]
        self._say_stopping()
        if self._record.failure is None:
            self._end(gateways, self._layout.drain_s + STOP_GRACE_S)
        self._end([*gateways, *(watched.group for watched in self._units.values())], STOP_GRACE_S)
        self._record = self._record.with_all("ended")
        self._write_if_due()

    def _say_stopping(self) -> None:
        """Record that the deployment is stopping, and that its ready units are draining: they finish their answers."""
        self._record = replace(self._record, is_stopping=True, stopped_by=self._stopped_by)
        for unit in self._record.units:
            if unit.state == "ready" and self._record.failure is None:
                self._record = self._record.with_unit(replace(unit, state="draining"))
        self._write_if_due()

    def _end(self, groups: Sequence[ProcessGroup], timeout_s: float) -> None:
        for group in groups:
            group.terminate()
        deadline = time.monotonic() + timeout_s
        while self._num_stops < 2 and time.monotonic() < deadline and any(group.is_running() for group in groups):
            self._write_if_due()
            time.sleep(POLL_S)
        for group in groups:
            group.kill()

    def _watch(self) -> None:
        """Check all gateways and units once, restart what is due, and record what has changed."""
        troubles: list[str] = []
        try:
            self._certificates.renew_if_due(now())
        except OSError as error:  # such as a full disk: the old certificates stay valid for hours
            troubles.append(f"certificates cannot be renewed: {error.strerror}")
        try:
            self._restore_files()
        except OSError as error:
            troubles.append(f"launch files cannot be written: {error.strerror}")
        try:
            reports = self._ask_gateways()
        except OSError as error:
            reports = self._reset_silence()
            troubles.append(f"the gateways cannot be asked: {error.strerror}")
        record = replace(self._record, trouble="; ".join(troubles) or None)
        ranks = merge_reports(list(reports.values()))
        if reports:
            record = self._record_states(self._record_stage(record, "gateway"), ranks)
        for gateway in record.gateways:
            record = self._watch_gateway(record, gateway, reports.get(gateway.name))
        for unit in record.units:
            record = self._watch_unit(record, unit.name, ranks)
        for reached in ("loading", "joining"):
            if all(_has_reached(unit, reached) for unit in record.units):
                record = self._record_stage(record, reached)
        if record.is_ready:
            record = self._record_stage(record, "ready")
        self._record = self._record_next_starts(self._play_day(self._note_live_maps(record)))
        self._write_if_due()

    def _restore_files(self) -> None:
        """Restore launch files that somebody removed, since restarted processes read them.

        Raises OSError if that fails.
        """
        folder = self._folder.launch_folder
        for name in {SERVED_WEIGHTS, SERVED_TOKENIZER} - self._files.keys():
            if (folder / name).is_file():
                self._files[name] = (folder / name).read_bytes()
        for name in (each for each in self._files if not os.path.exists(folder / each)):
            folder.mkdir(exist_ok=True)
            partial = folder / f".{name}.partial"
            partial.write_bytes(self._files[name])
            partial.replace(folder / name)

    def _ask_gateways(self) -> dict[str, GatewayReport]:
        """Return gateway name -> report, for gateways that answer.

        Raises OSError if this process cannot open a socket.
        """
        asked = {each.name: ask_gateway(each, self._gateways[each.name].group.pids) for each in self._layout.gateways}
        return {name: report for name, report in asked.items() if report is not None}

    def _reset_silence(self) -> dict[str, GatewayReport]:
        """Restart the count of each gateway's silence: this process could open no socket to ask. Return no reports."""
        for watched in self._gateways.values():
            watched.answered_at = watched.answered_at and time.monotonic()
        return {}

    def _write_if_due(self) -> None:
        """Write the record if it has changed, is older than BEAT_S, or was removed.

        If the write fails, the next call tries again, and serving goes on meanwhile. But `up` waits for a record that
        says that everything is ready; before there is one, a failed write ends the deployment.
        """
        is_old = time.monotonic() - self._last_write_at >= BEAT_S
        if self._last_written == self._record and not is_old and self._folder.has_record():
            return
        try:
            self._write()
        except OSError as error:
            if "ready" not in self._last_written.stages:
                self._unwritable = error.errno or errno.EIO

    def _write(self) -> None:
        at = time.monotonic()
        self._folder.write(replace(self._record, looked_at=at))
        self._last_written, self._last_write_at = self._record, at

    def _record_stage(self, record: Record, stage: str) -> Record:
        if stage in record.stages:
            return record
        return replace(record, stages=record.stages | {stage: round(time.monotonic() - self._began, 2)})

    def _record_states(self, record: Record, report: Mapping[str, Sequence[RankReport]]) -> Record:
        """Return the record with the state of each running unit, as `report` (unit -> its ranks' reports) shows it."""
        for unit in record.units:
            watched = self._units[unit.name]
            if watched.due is None and watched.is_wanted:
                unit = update_unit(unit, report.get(unit.name, ()))
                record = record.with_unit(unit)
            if unit.state == "ready":
                watched.backoff = watched.backoff.note_serving(time.monotonic())
        return record

    def _watch_gateway(self, record: Record, gateway: GatewayRecord, report: GatewayReport | None) -> Record:
        """Restart a gateway if it is due. Return the record with its state, restarts and reason.

        A gateway that ends before everything was ready ends the deployment.
        """
        watched, now = self._gateways[gateway.name], time.monotonic()
        starts = watched.is_due()
        why = watched.start_if_due()
        if why is not None:
            return record.with_gateway(replace(gateway, state="failed", reason=why))
        if starts:
            gateway = replace(gateway, state="starting")  # keeps the reason of its last end
        if watched.due is not None:
            return record
        watched.answered_at = now if report is not None else watched.answered_at
        ended = watched.find_failure(hangs=watched.answered_at is not None and now - watched.answered_at > UNANSWERED_S)
        if ended is not None and "ready" not in record.stages:
            return replace(record, failure=ended[1])
        if ended is not None:
            watched.end()
            return record.with_gateway(replace(gateway, state="failed", reason=ended[1]))
        if report is not None:
            watched.backoff = watched.backoff.note_serving(now)
            state = "ready" if report.is_ready or gateway.state == "ready" else "starting"
            gateway = replace(gateway, state=state, reason=None)
        return record.with_gateway(replace(gateway, restarts=watched.num_restarts))

    def _watch_unit(self, record: Record, name: str, report: Mapping[str, Sequence[RankReport]]) -> Record:
        """Restart a unit if it is due. Return the record with its state, restarts and reason.

        A unit that ends, or is refused, before everything was ready ends the deployment.
        """
        watched, (unit,) = self._units[name], [unit for unit in record.units if unit.name == name]
        if not watched.is_wanted:
            return self._watch_departure(record, unit)
        starts = watched.is_due()
        why = watched.start_if_due()
        if why is not None:
            return record.with_unit(replace(unit, state="failed", reason=why))
        if starts:
            unit = replace(unit, state="starting")
        if watched.due is not None:
            return record
        ended = watched.find_failure(hangs=has_hung_rank(report, name))
        if ended is None:
            if "ready" not in record.stages and is_refused(report, name):
                record = replace(record, failure=unit.reason)
            return record.with_unit(replace(unit, restarts=watched.num_restarts))
        status, reason = ended
        if "ready" not in record.stages:
            return replace(record.with_unit(replace(unit, state="failed", reason=reason)), failure=reason)
        watched.end()
        return record.with_unit(replace(unit, state="failed" if status else "ended", reason=reason))  # after a drain

    def _watch_departure(self, record: Record, unit: UnitRecord) -> Record:
        """Return the record with a stopping unit set to `off`, once the unit's processes are gone."""
        watched = self._units[unit.name]
        has_left, reason = (False, None) if watched.is_off else watched.has_left()
        return record.with_unit(replace(unit, state="off", loaded=0.0, reason=reason)) if has_left else record

    def _record_next_starts(self, record: Record) -> Record:
        """Return the record with the time of the next start of each gateway and unit that is down."""
        for gateway in record.gateways:
            record = record.with_gateway(replace(gateway, starts_at=self._gateways[gateway.name].due))
        for unit in record.units:
            record = record.with_unit(replace(unit, starts_at=self._units[unit.name].due))
        return record

    def _play_day(self, record: Record) -> Record:
        """Start and stop the units whose acts in the played day are due.

        Return the record with the units' states and the acts done. Nothing happens before the day's first units are
        ready, or if no day is played.
        """
        day, now = record.day, time.monotonic()
        if day is None or "ready" not in record.stages:
            return record
        began = now if day.began is None else day.began
        units = {unit.name: unit for unit in record.units}
        day, starts, drains = advance(
            replace(day, began=began),
            round(now - began, 2),
            {name: unit.state for name, unit in units.items()},
            {name: unit.reason for name, unit in units.items()},
        )
        for name in starts:
            why = self._units[name].arrive()
            state = "starting" if why is None else "failed"
            record = record.with_unit(replace(units[name], state=state, reason=why))
        for name in drains:
            self._units[name].leave(self._layout.drain_s + STOP_GRACE_S)
            record = record.with_unit(replace(units[name], state="draining", reason=None))
        return replace(record, day=day)


def _live_maps(folder: RunFolder, layout: Layout) -> Callable[[Record], Record]:
    """Return a function that lets units change their maps by themselves, and records the outcome."""
    settings = layout.live
    if settings is None:
        return lambda record: record
    from stacks.local.live_maps import LiveMaps, note_live_maps  # loads numpy, which few deployments need here

    live = LiveMaps(settings.limits)
    return lambda record: note_live_maps(record, live, settings, folder.launch_folder)


def _has_reached(unit: UnitRecord, stage: str) -> bool:
    """Return whether a unit is off, or has reached the state `stage` on its way to ready."""
    return unit.state == "off" or (unit.state in ORDER and ORDER.index(unit.state) >= ORDER.index(stage))

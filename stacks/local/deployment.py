"""Starting, following and stopping a deployment on this machine.

The supervisor is always a process of its own: `up --detach` differs from `up` only in not waiting for it.
"""

import errno
import importlib.util
import math
import os
import shutil
import signal
import socket
import stat
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from planner.facts import names
from planner.plan.plan import Plan
from planner.problems.errors import CallError, InfeasibleError
from planner.problems.finding import Finding
from stacks.local.errors import LocalError
from stacks.local.find import current_folder, deployment_folder
from stacks.local.layout import Layout, Listener, lay_out_locally
from stacks.local.played_day import DayRecord, plan_play
from stacks.local.processes import exit_status, open_log, terminate
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.run_folder import RunFolder, unusable_error

__all__ = [
    "follow",
    "plan_day",
    "require_cpu",
    "require_free",
    "require_keys",
    "require_matching_run",
    "require_runtime",
    "start",
    "stop",
]

POLL_S = 0.1
IN_USE = "address already in use"  # the system's message about a port in use
ANOTHER_HOST = "give `up` another --host of this machine, such as 127.0.1.1, or stop what listens there"
STOP_TIMEOUT_S = 20.0
CRASHED = 255  # exit status after a bug in the supervisor; other failures exit with an errno, which is smaller


def require_runtime() -> None:
    """Raise LocalError if the runtime is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise LocalError(
            "R106 the runtime is not installed", "torch is missing", "pip install '.[runtime]' in a checkout"
        )


def require_cpu(plan: Plan, source: Path) -> None:
    """Raise InfeasibleError if `plan` has units on GPUs. `source` is the file that the plan was read from."""
    devices = {plan.unit_document(unit)["device"] for unit in plan.units}
    if devices != {"cpu"}:
        rule, reason = "S733 must be cpu for tidemill up", "it starts processes that compute on this machine's CPUs"
        fix = "tidemill render writes its manifests, and pulumi up starts it on a cluster"
        raise InfeasibleError([Finding("cluster.gpu", None, rule, reason, fix).at(str(source))])


def require_keys(plan: Plan, keys: Path | None) -> None:
    """Raise CallError if `keys` cannot be read, or is None though the plan's keys are in a cluster's Secret."""
    if keys is None and plan.gateway.keys is not None:
        rule, reason = "R111 --keys FILE must be given", f"gateway.keys ({plan.gateway.keys}) is a Secret of a cluster"
        fix = f"give its {names.KEYS_FILE}, or one like it"
        raise CallError([Finding("", None, rule, reason, fix).at("tidemill up")])
    unreadable = None if keys is None else _explain_unreadable(keys)
    if unreadable is not None:
        rule, fix = (
            f"R124 --keys ({keys}) must be a file that can be read",
            "give a readable regular file; tidemill key makes an entry for it",
        )
        raise CallError([Finding("", None, rule, unreadable, fix).at("tidemill up")])


def plan_day(plan: Plan, length_s: float) -> DayRecord:
    """Return the acts of a day of `plan` that takes `length_s` on this machine.

    Raises CallError if no unit ever goes off, and InfeasibleError if the day is too short for this machine.
    """
    ranks = {unit.name: unit.ranks for unit in plan.units}
    return plan_play(plan.timetable, length_s, ranks, len(os.sched_getaffinity(0)))


def require_matching_run(running: Record, host: str | None, keys: Path | None, day: DayRecord | None) -> None:
    """Raise LocalError if `running` has other `keys` or another `host` than asked for, or if a `day` is to be played.

    Keys or a host of None match any.
    """
    here, fix = f"{running.name} is already running here", f"stop it first: tidemill down {running.name}"
    if keys is not None and (running.keys is None or os.path.realpath(running.keys) != os.path.realpath(keys)):
        its, asked = "without API keys", "for them"
        if running.keys is not None:
            its, asked = f"with the API keys of {running.keys}", "for others"
        raise LocalError(f"R125 {here} {its}", f"--keys ({keys}) asks {asked}", fix)
    if host not in (None, running.host):
        raise LocalError(f"R126 {here} on {running.host}", f"--host ({host}) asks for another address", fix)
    if day is not None:
        reason = "--day plays a day from its beginning, so it has to start the units itself"
        raise LocalError(f"R119 {here}", reason, fix)


def start(
    plan: Plan, host: str, *, detached: bool, keys: Path | None = None, day: DayRecord | None = None
) -> RunFolder:
    """Write the plan's files and start its supervisor, which ends with this process unless `detached`.

    The supervisor plays `day`, if given. If several processes start a deployment of the same name at once, the first to
    hold the lock starts it, and the others change no file. The returned folder refers only to the supervisor started
    here. Raises LocalError if the deployment cannot be started.
    """
    require_runtime()
    folder = deployment_folder(plan.name)
    layout = lay_out_locally(plan, folder.launch_folder, folder.certificates, folder.kv_folder, host, keys)
    record = _first_record(plan, layout, keys, day)
    from stacks.local.supervisor import supervise  # its imports take as long as the rest of this room

    with ExitStack() as locks:
        try:
            folder.make()
            locks.enter_context(folder.hold_lock())
            require_free(layout.listeners)
            record = replace(record, weights_before=_previous_weights(folder, plan))
            folder.kv_folder.mkdir(exist_ok=True)
            _write_launch_files(folder.launch_folder, layout.files)
            log = open_log(folder.path / "supervisor.log", is_new=True)
            supervisor = _fork(lambda on_started: supervise(folder, layout, record, on_started), log, detached)
        except OSError as error:
            raise unusable_error(folder.path, error) from None
    return RunFolder(folder.path, supervisor)


def require_free(listeners: Iterable[Listener]) -> None:
    """Raise LocalError if another process already listens at one of `listeners`."""
    for each in listeners:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the processes themselves bind in the same way
            try:
                probe.bind((each.address, each.port))
                probe.listen()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    rule = f"R123 cannot listen on {each.address}:{each.port} ({each.purpose})"
                    raise LocalError(rule, IN_USE, f"{ANOTHER_HOST}; tidemill status shows what is ours") from None


def follow(folder: RunFolder, refresh_s: float = math.inf) -> Iterator[Record]:
    """Yield the record at every change, and every `refresh_s` seconds, as long as the supervisor lives.

    If the supervisor is our own child process, unreadable records are skipped; otherwise they raise LocalError. Raises
    LocalError too if the deployment fails.
    """
    last, said_at = None, 0.0
    while True:
        is_running = folder.is_running()  # asked before reading, so that the final record is read
        record = _read_record(folder)
        if record is not None and (record != last or time.monotonic() - said_at >= refresh_s):
            yield record
            last, said_at = record, time.monotonic()
        if not is_running:
            break
        time.sleep(POLL_S)
    status = (None if folder.supervisor is None else exit_status(folder.supervisor)) or 0
    failure = _supervisor_failure(status) or (None if last is None else last.failure)
    if failure is not None:
        taken = f"{ANOTHER_HOST}; " if IN_USE in failure else ""
        fix = f"{taken}its logs are in {folder.path}"
        raise LocalError(f"R104 {folder.name} could not go on", failure, fix)
    if status:
        raise unusable_error(folder.path, OSError(status, os.strerror(status)))


def _read_record(folder: RunFolder) -> Record | None:
    try:
        return folder.read()
    except LocalError:
        if folder.supervisor is None:
            raise
        return None


def _supervisor_failure(status: int) -> str | None:
    """Return the reason why a supervisor crashed or was killed; None for any other exit status."""
    if status < 0:
        return f"its supervisor was killed by {signal.Signals(-status).name}"
    return "its supervisor failed" if status == CRASHED else None


def stop(folder: RunFolder) -> None:
    """Stop the deployment once it has answered its running requests, and wait until it has ended.

    If the supervisor was killed, the deployment has ended already, and only its record is changed to say so.

    Raises LocalError if the deployment does not end.
    """
    if folder.was_killed():
        with suppress(OSError, LocalError):  # a full disk, or a new start: the record stays true
            folder.record_stopped()
        return
    record = folder.read()
    if record is None:  # another supervisor has replaced ours
        return
    timeout_s = STOP_TIMEOUT_S + record.drain_s
    deadline = time.monotonic() + timeout_s
    if folder.is_running():
        terminate(record.supervisor, record.supervisor_began)
    while folder.is_running():
        if time.monotonic() > deadline:
            rule = f"R105 {folder.name} did not stop within {timeout_s:.0f} s"
            raise LocalError(
                rule,
                f"its supervisor is process {record.supervisor}",
                "kill it, which ends all processes of the deployment",
            )
        time.sleep(POLL_S)


def _first_record(plan: Plan, layout: Layout, keys: Path | None, day: DayRecord | None) -> Record:
    """Return a deployment's first record. In a played day the first units of the day start, otherwise all units."""
    first = [unit.name for unit in plan.units] if day is None else day.first_units
    units = tuple(
        UnitRecord(
            unit.name,
            unit.phase,
            "starting" if unit.name in first else "off",
            unit.ranks,
            metrics=layout.metrics[unit.name],
            planned_map=unit.expert_map,
        )
        for unit in plan.units
    )
    return Record(
        plan.name,
        plan.digest,
        tuple(
            GatewayRecord(gateway.name, gateway.endpoint, metrics=layout.metrics[gateway.name])
            for gateway in layout.gateways
        ),
        _model_name(plan),
        units,
        switches_units=plan.switches_units and day is None,
        day=day,
        drain_s=layout.drain_s,
        keys=None if keys is None else str(keys.absolute()),
        started_in=current_folder(),
        slo_ms=promised_ms(plan),
    )


def promised_ms(plan: Plan) -> tuple[float | None, float | None]:
    """Return the mean TTFT and the mean TPOT that the plan promises, in milliseconds; None for a missing promise."""
    slo = plan.spec.slo
    return slo.ttft_ms, slo.tpot_ms


def _previous_weights(folder: RunFolder, plan: Plan) -> str | None:
    """Return the digest of the weights served here last.

    None if the digest is unknown, or if the gateway's launch file has changed since.
    """
    gateway = names.GATEWAY_LAUNCH_FILE
    try:
        is_same = (folder.launch_folder / gateway).read_text() == plan.launch_files()[gateway]
        return folder.served_weights.read_text() if is_same else None
    except (OSError, UnicodeDecodeError):
        return None


def _explain_unreadable(keys: Path) -> str | None:
    """Return why gateways could not read the file `keys` at any time later; None if they can."""
    try:
        if not stat.S_ISREG(keys.stat().st_mode):
            return "it is no regular file, and gateways read it again when they start or it has changed"
        keys.open("rb").close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _write_launch_files(folder: Path, files: Mapping[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)


def _model_name(plan: Plan) -> str:
    """Return the model's name as /v1/models lists it."""
    name: str = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]["model"]["name"]
    return name


def _fork(run: Callable[[Callable[[], None]], int], log: int, detached: bool) -> int:
    """Run `run(on_started)` in a new process and session, which ends with this process unless `detached`.

    Return the process id, once the process has called `on_started` or ended. The process's output goes to the
    descriptor `log`, and its exit status is what `run` returns. The caller does not reap it, so the process id is not
    reused while the caller lives.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(writer)
        os.close(log)
        os.read(reader, 1)
        os.close(reader)
        return child
    os.setsid()
    _redirect_output(log)
    if not detached:
        from stacks.local.supervisor import end_with_parent

        end_with_parent(parent)
    status = CRASHED
    try:
        status = run(lambda: os.close(writer))
    finally:
        if status == CRASHED:
            with suppress(OSError):  # a full disk
                traceback.print_exc()
        os._exit(status)


def _redirect_output(log: int) -> None:
    source = os.open(os.devnull, os.O_RDONLY)
    for descriptor, stream in ((source, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, stream)

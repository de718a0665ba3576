"""What a machine does not let the supervisor do, as on a full disk.

A start ends with that reason. What runs already goes on, with a true record once that is possible.
"""

import datetime
import errno
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from stacks.local import cli
from stacks.local import supervisor as module
from stacks.local.certificates import RENEWED_AFTER, now
from stacks.local.deployment import CRASHED, follow
from stacks.local.errors import LocalError
from stacks.local.layout import GatewayProcess, Identity, Layout, NodeProcess
from stacks.local.processes import ProcessGroup
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.reports import ask_gateway
from stacks.local.run_folder import RunFolder
from tests.stacks.deployments import wait_until

IDENTITY = "spiffe://tidemill.dev/ns/tidemill/deployment/demo/gateway"


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """A supervisor of a gateway that answers nothing, and its folder."""
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    folder = RunFolder(tmp_path)
    identity = Identity(IDENTITY, "server", folder.certificates / "gateway")
    layout = Layout((GatewayProcess(NodeProcess("gateway", None, ("true",)), "127.0.0.1", 1),), (), (identity,), 1.0)
    return module._Supervisor(
        folder,
        layout,
        Record("demo", "sha256:0", (GatewayRecord("gateway", "http://127.0.0.1:1", "ready"),), "demo", ()),
    ), folder


def full(*_):
    """What a write says there."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_record_that_cannot_be_written_is_written_later(deployment, monkeypatch):
    """Once everything was ready, the supervisor goes on with what it knows."""
    supervisor, folder = deployment
    supervisor._watch()  # its gateway is ready, and there are no units
    supervisor._record = replace(supervisor._record, stages={**supervisor._record.stages, "gateway": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", full)
        supervisor._watch()
        assert folder.read().stages.keys() == {"loading", "joining", "ready"}
        assert not supervisor._is_over()
    supervisor._watch()

    assert folder.read().stages.keys() == {"loading", "joining", "ready", "gateway"}


def test_a_start_that_cannot_be_recorded_ends(deployment, monkeypatch):
    """`up` waits for a record that says so: the supervisor ends with the system's number for a full disk."""
    supervisor, folder = deployment
    monkeypatch.setattr(RunFolder, "write", full)

    assert supervisor.run() == errno.ENOSPC
    assert module.supervise(folder, supervisor._layout, supervisor._record, pytest.fail) == errno.ENOSPC


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (f"exit {errno.ENOSPC}", r"No space left on device.*R110"),
        (f"exit {CRASHED}", r"its supervisor failed.*R104"),
        ("kill -KILL $$", r"its supervisor was killed by SIGKILL.*R104"),
    ],
)
def test_up_says_why_its_supervisor_has_ended(end, said, tmp_path):
    """Its exit status is all that it can leave where nothing can be written."""
    with subprocess.Popen(["sh", "-c", end]) as supervisor, pytest.raises(LocalError, match=said):
        list(follow(RunFolder(tmp_path, supervisor.pid)))


def test_up_stays_where_it_can_say_nothing(monkeypatch):
    """`tidemill up 2> log` on a full disk: what it owns ends when it does."""
    down = GatewayRecord("gateway", "http://127.0.0.1:1", "failed", "it was killed")
    seen = iter([Record("demo", "sha256:0", (down,), "demo", ())] * 2)
    monkeypatch.setattr(cli, "follow", lambda _: seen)
    monkeypatch.setattr(cli, "say", lambda sentence: full() if "killed" in sentence else None)
    cli.stay(None)

    assert list(seen) == []


def test_certificates_that_cannot_be_renewed_are_renewed_later(deployment, monkeypatch):
    """Those that are there are good for hours."""
    supervisor, folder = deployment
    path = folder.certificates / "gateway" / "tls.crt"
    before = path.read_bytes()
    monkeypatch.setattr(module, "now", lambda: now() + RENEWED_AFTER + datetime.timedelta(seconds=1))
    with monkeypatch.context() as patch:
        patch.setattr("stacks.local.certificates._write", full)
        supervisor._watch()
        assert path.read_bytes() == before
    supervisor._watch()

    assert path.read_bytes() != before


SLEEPS = ("sh", "-c", "exec sleep 600")  # which takes no --parent


@pytest.fixture
def two_units(tmp_path, monkeypatch):
    """A supervisor of two units that were ready, of two nodes and of one, and their groups."""
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    monkeypatch.setattr("stacks.local.restarts.FIRST_S", 0.0)
    monkeypatch.setattr("stacks.local.run_folder.PROBE_GRACE_S", 0.01)
    nodes = [NodeProcess(f"{unit}.{node}", unit, SLEEPS) for unit, node in (("a", 0), ("a", 1), ("b", 0))]
    units = tuple(UnitRecord(name, "mixed", "ready", 1) for name in ("a", "b"))
    gateway = GatewayProcess(NodeProcess("gateway", None, SLEEPS), "127.0.0.1", 1)
    record = Record("demo", "sha256:0", (GatewayRecord("gateway", gateway.endpoint, "ready"),), "demo", units)
    supervisor = module._Supervisor(RunFolder(tmp_path), Layout((gateway,), tuple(nodes), (), 1.0), record)
    supervisor._start_all()
    supervisor._watch()
    yield supervisor
    for watched in (*supervisor._gateways.values(), *supervisor._units.values()):
        watched.group.kill()


def no_descriptor(*_, **__):
    """What a process is told that has too many files open."""
    raise OSError(errno.EMFILE, "Too many open files")


def test_files_that_somebody_removed_are_written_back(two_units):
    """Units start again from the launch files, and gateways compare with what they served first."""
    folder = two_units._folder.launch_folder
    two_units._files = {"a.json": b"{}"}
    two_units._watch()
    (folder / "served-weights").write_text("sha256:first")
    two_units._watch()
    shutil.rmtree(folder)
    two_units._watch()

    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "a.json": "{}",
        "served-weights": "sha256:first",
    }


def break_log(folder, patch):
    """Put a folder where a node's log is to be."""
    (folder / "a.1.log").unlink()
    (folder / "a.1.log").mkdir()


@pytest.mark.parametrize(
    ("hinder", "why"),
    [
        (break_log, r"a could not be started: Is a directory \(.*/a\.1\.log\)"),
        (lambda folder, _: shutil.rmtree(folder), r"a could not be started: No such file or directory"),
        (lambda _, patch: patch.setattr(subprocess, "Popen", no_descriptor), "a could not be started: Too many open"),
    ],
)
def test_a_start_that_fails_is_one_failed_attempt_of_one_unit(two_units, monkeypatch, tmp_path, hinder, why):
    """It has its reason, leaves no node running alone, and is tried again; the other unit goes on."""
    other = two_units._units["b"].group.pids
    two_units._units["a"].group.terminate()
    wait_until(lambda: not two_units._units["a"].group.is_running())
    with monkeypatch.context() as patch:
        hinder(tmp_path, patch)
        two_units._watch()
        two_units._watch()
        failed = {unit.name: unit for unit in two_units._record.units}
    assert (failed["a"].state, failed["b"].state, failed["a"].restarts) == ("failed", "ready", 0)
    assert re.match(why, failed["a"].reason)
    assert not two_units._units["a"].group.is_running()
    shutil.rmtree(tmp_path / "a.1.log", ignore_errors=True)
    tmp_path.mkdir(exist_ok=True)
    wait_until(lambda: two_units._watch() or two_units._record.units[0].restarts)

    assert two_units._units["a"].group.is_running()
    assert two_units._units["b"].group.pids == other


def test_a_supervisor_that_fails_says_so_in_its_record(two_units, monkeypatch, tmp_path):
    """Nothing of it runs any more, and nothing is ready for ever."""
    monkeypatch.setattr(two_units, "_watch", lambda: 1 / 0)
    monkeypatch.setattr(two_units, "_start_all", lambda: None)
    with pytest.raises(ZeroDivisionError):
        two_units.run()
    left = RunFolder(tmp_path).read()

    assert left.failure == module.BROKEN
    assert {unit.state for unit in left.units} == {"ended"}
    assert not any(watched.group.is_running() for watched in two_units._units.values())


def test_a_supervisor_that_is_told_to_end_says_by_what(two_units, tmp_path):
    """Any signal that leaves it time for it: nobody takes what it left for a deployment that runs."""
    two_units._request_stop(signal.SIGHUP, None)
    two_units.run()
    left = RunFolder(tmp_path).read()

    assert (left.failure, left.stopped_by, left.is_stopping) == (None, "SIGHUP", True)
    assert {part.state for part in left.parts} == {"ended"}


def test_a_gateway_is_not_ended_because_it_cannot_be_asked(deployment, monkeypatch):
    """The supervisor lacks a descriptor, and says so; the gateway may answer everybody else."""
    supervisor, folder = deployment
    watched = supervisor._gateways["gateway"]
    monkeypatch.setattr(watched, "group", ProcessGroup("gateway", [NodeProcess("gateway", None, SLEEPS)], folder.path))
    watched.group.start()
    supervisor._watch()
    watched.answered_at = 1.0  # long ago
    with monkeypatch.context() as patch:
        patch.setattr("socket.socket", no_descriptor)
        supervisor._watch()
    said = folder.read()
    watched.group.kill()

    assert said.trouble == "the gateways cannot be asked: Too many open files"
    assert [gateway.state for gateway in said.gateways] == ["ready"]


@pytest.mark.parametrize("what", ["record", "folder"])
def test_what_somebody_removes_is_there_again(two_units, tmp_path, what):
    """`status` and `down` find the deployment again, and nobody else can start it."""
    folder = two_units._folder
    with folder.hold_lock():
        (shutil.rmtree if what == "folder" else os.unlink)(tmp_path / ("deployment.json" if what == "record" else ""))
        two_units._write_if_due()

        assert RunFolder(tmp_path).read() == two_units._record
        with pytest.raises(LocalError, match="R101"), RunFolder(tmp_path).hold_lock():
            pass


def test_nobody_writes_where_another_holds_the_folder(two_units, tmp_path, monkeypatch):
    """A folder that was removed may have been made anew by another `up`: its record is its own."""
    with two_units._folder.hold_lock():
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        with RunFolder(tmp_path).hold_lock():
            two_units._write_if_due()

            assert RunFolder(tmp_path).read() is None


def test_a_stranger_at_a_gateways_port_delays_nothing(monkeypatch):
    """One that drips its answer, or says something else: the supervisor looks at all others meanwhile."""
    monkeypatch.setattr("stacks.local.reports.ASK_S", 0.2)
    for answers in ([b"HTTP/1.1 200 OK\r\n\r\n[1]", b""], itertools.repeat(b"x")):
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=drip, args=(server, answers), daemon=True).start()
            gateway = GatewayProcess(NodeProcess("gateway", None, ()), *server.getsockname())

            assert ask_gateway(gateway, [1]) is None


def drip(server, answers):
    """Answer one caller, a piece at a time, as long as it listens."""
    with suppress(OSError), server.accept()[0] as caller:
        for each in answers:
            caller.sendall(each)
            time.sleep(0.02)

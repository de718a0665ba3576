"""The record of a deployment and the lock that says whether it lives."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stacks import cli
from stacks.live import status_cli
from stacks.local import deployment, find, run_folder, up_cli
from stacks.local.deployment import stop
from stacks.local.errors import LocalError
from stacks.local.find import running_deployments
from stacks.local.processes import start_ticks
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.run_folder import RunFolder
from tests.stacks.deployments import wait_until

GATEWAY = GatewayRecord("gateway", "http://127.0.0.1:8000", "ready")
RECORD = Record("demo", "sha256:0", (GATEWAY,), "m", ())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "PROBE_GRACE_S", 0.2)
    (tmp_path / "demo").mkdir()
    return RunFolder(tmp_path / "demo")


def test_a_deployment_runs_while_its_lock_is_held(folder):
    """Not before, and not after."""
    folder.write(replace(RECORD, supervisor=os.getpid(), supervisor_began=start_ticks(os.getpid())))
    before = folder.is_running()
    with folder.hold_lock():
        during = folder.is_running()

    assert (before, during, folder.is_running()) == (False, True, False)


@pytest.fixture
def innocent():
    """A process that has nothing to do with a deployment."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_nobody_ends_a_process_that_has_a_dead_supervisors_number(folder, innocent):
    """Whoever holds the lock: `status` says that nothing runs, and `down` leaves the process alone."""
    folder.write(replace(RECORD, supervisor=innocent.pid, supervisor_began=start_ticks(innocent.pid) - 1))
    with folder.hold_lock():
        is_running = folder.is_running()
        stop(folder)
        folder.was_killed = lambda: False  # it died, and its number was given away, after `stop` asked
        folder.is_running = iter([True, False]).__next__
        stop(folder)

    assert not is_running
    assert innocent.poll() is None


def test_a_supervisor_is_asked_to_end(folder, innocent):
    """The process that the record has, if it began when the record says."""
    folder.write(replace(RECORD, supervisor=innocent.pid, supervisor_began=start_ticks(innocent.pid)))
    folder.is_running = lambda: innocent.poll() is None
    stop(folder)

    assert innocent.returncode == -15


def test_a_state_folder_is_its_users_alone(folder):
    """Also one that was there before, which others could read."""
    folder.path.chmod(0o755)
    folder.make()

    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


@pytest.fixture
def another_user():
    """The number of a user who is not us: only root can give folders away."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    return 65_534


@pytest.mark.parametrize("whose", ["", "demo"])
def test_a_folder_of_another_user_is_neither_taken_nor_believed(whose, folder, another_user):
    """R120, for root too: its owner could put links and records of theirs into it."""
    folder.write(replace(RECORD, supervisor=os.getpid(), supervisor_began=start_ticks(os.getpid())))
    os.chown(folder.path.parent / whose, another_user, another_user)
    with folder.hold_lock():
        is_running = folder.is_running()

    assert not is_running
    with pytest.raises(LocalError, match=r"must be yours.*R120"):
        folder.make()


def test_a_link_of_another_user_is_not_followed(tmp_path, another_user):
    """A link to a folder of ours is theirs to turn."""
    (tmp_path / "ours").mkdir(mode=0o755)
    (tmp_path / "demo").symlink_to(tmp_path / "ours")
    os.chown(tmp_path / "demo", another_user, another_user, follow_symlinks=False)

    with pytest.raises(LocalError, match="R120"):
        RunFolder(tmp_path / "demo").make()
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "written", [b"not json", b"{}", b"[]", b"null", b"[" * 100_000, b"\0\xff", b"a folder", b"no gateway", b"a number"]
)
def test_a_damaged_record_is_one_sentence(written, folder):
    """R121, with the folder that can be removed."""
    folder.write(RECORD)
    path = folder.path / "deployment.json"
    text = path.read_bytes()
    path.unlink()
    if written == b"a folder":
        path.mkdir()
    else:
        path.write_bytes(
            {
                b"no gateway": json.dumps(json.loads(text) | {"gateways": []}).encode(),
                b"a number": text.replace(b'"ready"', b"5"),
            }.get(written, written)
        )

    with folder.hold_lock(), pytest.raises(LocalError, match=r"deployment\.json must be the record.*R121") as error:
        folder.is_running()
    assert f"remove {folder.path}" in str(error.value)


@pytest.mark.parametrize(("reads", "looks"), [("_open_folder", RunFolder.is_running), ("read_file", RunFolder.read)])
def test_what_cannot_be_read_now_is_not_damaged_and_not_away(folder, monkeypatch, reads, looks):
    """R110 of a folder or a record that is closed to us: nobody is told that nothing runs, or to remove it."""

    def closed(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(run_folder, reads, closed)
    with pytest.raises(LocalError, match=r"Permission denied; set XDG_STATE_HOME to a folder of yours \[R110\]"):
        looks(folder)


def test_a_damaged_record_is_its_own_deployments_alone(folder, monkeypatch, capsys):
    """Others are found by their names, and it is named beside them; only who asks for it is told R121."""
    monkeypatch.setattr(find, "_state_root", lambda: folder.path.parent)
    monkeypatch.setattr(up_cli, "stop", lambda folder: None)
    folder.write(replace(RECORD, supervisor=os.getpid(), supervisor_began=start_ticks(os.getpid())))
    broken = RunFolder(folder.path.parent / "broken")
    broken.make()
    (broken.path / "deployment.json").write_text("not json")

    with folder.hold_lock(), broken.hold_lock():
        assert [each.name for each in running_deployments()] == ["broken", folder.name]
        assert cli.main(["status", folder.name]) == cli.main(["down", folder.name]) == 0
        for words, expected in {
            ("status", "--format", "json"): "R103",
            ("status",): "R121",
            ("down", "nosuch"): rf"broken or {folder.name}.*S101",
            ("status", "broken"): "R121",
        }.items():
            capsys.readouterr()
            assert cli.main(words) != 0
            said = capsys.readouterr()
            assert re.search(expected, said.out + said.err)
            assert (words == ("status",)) == said.out.startswith(f"{folder.name}: ")


def test_a_lock_cannot_be_removed_from_under_its_holder(folder):
    """Whatever is removed from the folder, `status` sees what runs, and nobody else starts it."""
    folder.write(replace(RECORD, supervisor=os.getpid(), supervisor_began=start_ticks(os.getpid())))
    with folder.hold_lock():
        for path in folder.path.iterdir():
            path.unlink()
        assert not folder.has_record()
        folder.write(replace(RECORD, supervisor=os.getpid(), supervisor_began=start_ticks(os.getpid())))

        assert RunFolder(folder.path).is_running()
        with pytest.raises(LocalError, match="R101"), RunFolder(folder.path).hold_lock():
            pass


def test_a_folder_that_is_replaced_while_it_is_locked_is_another(folder, monkeypatch):
    """Whoever comes between opening and locking has the new one: the old one is nobody's to write."""
    opened = run_folder._open_folder

    def replaced(path):
        monkeypatch.setattr(run_folder, "_open_folder", opened)
        path.rename(path.with_name("gone"))
        path.mkdir()
        return opened(path.with_name("gone"))

    monkeypatch.setattr(run_folder, "_open_folder", replaced)
    with folder.hold_lock(), pytest.raises(LocalError, match="R101"), RunFolder(folder.path).hold_lock():
        pass


@pytest.mark.parametrize(
    ("words", "silent_s", "said"),
    [
        (["kill", "-STOP"], 0.0, r"the supervisor, process \d+, is stopped; kill -CONT \d+ lets it go on"),
        (
            ["true"],
            run_folder.SILENT_S + 1,
            r"the supervisor, process \d+, hangs or cannot write: its record is \d+ s old",
        ),
    ],
)
def test_what_a_supervisor_cannot_correct_is_unknown(folder, innocent, monkeypatch, capsys, words, silent_s, said):
    """A stopped one holds its lock, and its last record says that all is ready. A unit that has failed still has."""
    _only_this_runs(folder, monkeypatch)
    units = (UnitRecord("demo-decode-0", "decode", "ready", 4), UnitRecord("demo-decode-1", "decode", "failed", 4, "x"))
    began = {"supervisor": innocent.pid, "supervisor_began": start_ticks(innocent.pid)}
    folder.write(replace(RECORD, units=units, looked_at=time.monotonic() - silent_s, **began))
    subprocess.run([*words, str(innocent.pid)], check=True)
    wait_until(lambda: folder.read().units[0].state == "unknown")

    assert cli.main(["status"]) == 1
    printed = capsys.readouterr().out
    assert re.search(rf"demo-decode-0  decode  4 ranks  unknown \({said}\)\n", printed)
    assert "demo-decode-1  decode  4 ranks  failed (x)\n" in printed


def test_a_stopped_supervisor_is_ended_all_the_same(folder, innocent):
    """It would heed the request when somebody lets it go on."""
    folder.write(replace(RECORD, supervisor=innocent.pid, supervisor_began=start_ticks(innocent.pid)))
    folder.is_running = lambda: innocent.poll() is None
    innocent.send_signal(signal.SIGSTOP)
    stop(folder)

    assert innocent.returncode == -signal.SIGTERM


def test_up_goes_on_while_its_supervisor_does(folder, innocent, monkeypatch):
    """A record that is gone, or cannot be read, ends nothing: it comes again."""
    ours, looks = RunFolder(folder.path, innocent.pid), []

    def sleep(_):
        looks.append(len(looks))
        if len(looks) == 1:
            (folder.path / "deployment.json").write_text("damaged")
        if len(looks) == 2:
            folder.write(replace(RECORD, supervisor=innocent.pid, supervisor_began=start_ticks(innocent.pid)))
        if len(looks) == 3:
            innocent.kill()
            os.waitid(os.P_PID, innocent.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(deployment, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with pytest.raises(LocalError, match="was killed by SIGKILL"):
        list(deployment.follow(ours))

    assert len(looks) == 3


@pytest.mark.parametrize(
    ("base", "found"), [("/state", "/state"), ("state", "/home/.local/state"), ("", "/home/.local/state")]
)
def test_a_relative_state_folder_does_not_count(monkeypatch, base, found):
    """As the XDG specification has it: what runs would depend on where one asks."""
    monkeypatch.setenv("HOME", "/home")
    monkeypatch.setenv("XDG_STATE_HOME", base)

    assert str(find._state_root()) == f"{found}/tidemill"


@pytest.mark.parametrize("home", [None, "home"])
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, capsys, home):
    """As in a container whose user has no entry: R110. A relative one is none."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    monkeypatch.setenv("HOME", home or "")
    if home is None:
        monkeypatch.delenv("HOME")

    assert cli.main(["status"]) == 1
    assert "this user has no home folder; set XDG_STATE_HOME to a folder of yours [R110]" in capsys.readouterr().err


def test_asking_whether_it_runs_does_not_keep_it_from_starting(folder):
    """`status` in a loop beside `up`: the question holds the lock for a moment, and the supervisor waits that long."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            folder.is_running()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            with folder.hold_lock():
                pass
    finally:
        done.set()
        asking.join()


def test_a_second_supervisor_is_refused(folder):
    """A deployment has one."""
    with (
        folder.hold_lock(),
        pytest.raises(LocalError, match="demo is being started or run by another process"),
        folder.hold_lock(),
    ):
        pass


def _only_this_runs(folder, monkeypatch):
    """Have `status` find this deployment and no other."""
    monkeypatch.setattr(status_cli, "find_deployment", lambda path, overlays: folder)
    monkeypatch.setattr(status_cli, "find_all", lambda path, overlays: [folder])


def test_status_says_that_nothing_switches_units(folder, monkeypatch, capsys):
    """Where the plan that runs has a schedule that would; the record keeps that."""
    _only_this_runs(folder, monkeypatch)
    said = []
    for switches_units in (True, False):
        folder.write(Record("demo", "sha256:0", (GATEWAY,), "m", (), switches_units=switches_units))
        assert cli.main(["status"]) == 0
        said.append(capsys.readouterr().err)

    assert said == ["All units stay on, whatever the schedule says: tidemill up --day plays its day.\n", ""]


def test_a_watch_says_a_sentence_once(folder, monkeypatch, capsys):
    """On stderr as on stdout, something is told again when it has changed."""
    _only_this_runs(folder, monkeypatch)
    records = [Record("demo", "sha256:0", (GATEWAY,), "m", (), switches_units=each) for each in (True, False, True)]
    later = [records[0], *records]

    def sleep(_):
        if not later:
            raise KeyboardInterrupt
        folder.write(later.pop(0))

    folder.write(records[0])
    monkeypatch.setattr(status_cli.time, "sleep", sleep)
    assert cli.main(["status", "--watch"]) == 0
    said = capsys.readouterr()

    assert said.err.count("All units stay on") == 2
    assert said.out.count("plan sha256:0") == 1


@pytest.mark.parametrize(("state", "status"), [("failed", 1), ("ready", 0), ("ended", 0), ("starting", 0)])
def test_status_exits_with_1_when_a_unit_has_failed(folder, monkeypatch, capsys, state, status):
    """So that a script sees it. A unit that was told to end has not failed."""
    _only_this_runs(folder, monkeypatch)
    units = (UnitRecord("demo-decode-0", "decode", state, 4),)
    folder.write(Record("demo", "sha256:0", (GATEWAY,), "m", units))

    assert cli.main(["status"]) == status
    assert cli.main(["status", "--format", "json"]) == status


@pytest.mark.parametrize("where", ["", "/tidemill", "/tidemill/demo"])
def test_a_state_folder_that_is_none_is_one_sentence(where, tmp_path, monkeypatch, capsys):
    """`up` says which folder it needs, and `status` that nothing runs: a file has its name, or a parent's."""
    place = tmp_path / f"state{where}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("taken")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    status = cli.main(["status", "--format", "json"])
    answer = capsys.readouterr().out

    assert (status, json.loads(answer)["units"]) == (0, [])
    assert cli.main(["up", "--detach"]) == 1
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "[R110]" in line)
    assert f"{tmp_path}/state/tidemill/demo must be a folder that can be read and written" in said

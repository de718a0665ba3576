"""Two `up`s of one name at once: one runs, with its own files, and the other one touches nothing of it."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.cli import main
from stacks.local import deployment, find, run_folder
from stacks.local.errors import LocalError
from stacks.local.processes import start_ticks
from stacks.local.record import UnitRecord
from stacks.local.run_folder import RunFolder
from tests.stacks.deployments import DEMO_SPEC, HOSTS
from tests.stacks.messages import DEMO


@pytest.fixture(scope="module")
def plan():
    """The demo's."""
    return compile_plan(check_spec(DEMO_SPEC))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The demo's, where another `up` has written what its supervisor reads."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(run_folder, "PROBE_GRACE_S", 0.01)
    folder = find.deployment_folder("demo")
    folder.make()
    folder.launch_folder.mkdir()
    for path in (folder.launch_folder / "theirs.json", folder.path / "supervisor.log"):
        path.write_text("theirs")
    return folder


def texts(folder):
    """What is in its files, by path."""
    return {path.relative_to(folder.path): path.read_text() for path in folder.path.rglob("*") if path.is_file()}


def test_the_second_one_changes_no_file(plan, folder, monkeypatch):
    """R101 before the first one has written its record, too: the lock is all that there is of it."""
    monkeypatch.setattr(deployment, "_fork", lambda *_: pytest.fail("it has started a supervisor"))
    with folder.hold_lock():
        before = texts(folder)
        with pytest.raises(LocalError, match=r"demo is being started or run by another process.*R101"):
            deployment.start(plan, next(HOSTS), detached=True)

        assert texts(folder) == before


def test_files_and_supervisor_come_under_one_lock(plan, folder, monkeypatch):
    """Nobody can come between: the launch files that the supervisor starts with are its own plan's."""
    seen = []

    def fork(_run, log, _detached):
        os.close(log)
        with pytest.raises(LocalError, match="R101"), folder.hold_lock():
            pass
        seen.append({path.name: json.loads(path.read_text()) for path in folder.launch_folder.iterdir()})
        return os.getpid()

    monkeypatch.setattr(deployment, "_fork", fork)
    deployment.start(plan, next(HOSTS), detached=True)

    assert seen == [{name: json.loads(text) for name, text in plan.launch_files().items()}]


def test_an_up_follows_and_stops_its_own_supervisor_alone(folder, monkeypatch):
    """One that came after it in the same folder is somebody else's: Ctrl-C does not end that."""
    monkeypatch.setattr(deployment, "terminate", lambda *_: pytest.fail("it ends another's supervisor"))
    folder.write(replace(DEMO, supervisor=os.getpid(), supervisor_began=start_ticks(os.getpid())))
    with subprocess.Popen(["true"]) as supervisor, folder.hold_lock():
        ours = RunFolder(folder.path, supervisor.pid)
        deployment.stop(ours)

        assert (list(deployment.follow(ours)), ours.read()) == ([], None)
        assert folder.is_running()


def test_a_second_up_waits_for_no_unit_that_comes_and_goes(plan, folder, monkeypatch, capsys):
    """Once all was ready, the endpoint is told, whatever has failed or been turned off since."""
    monkeypatch.setattr(deployment.time, "sleep", lambda _: pytest.fail("it waits"))
    folder.write(
        replace(
            DEMO,
            supervisor=os.getpid(),
            supervisor_began=start_ticks(os.getpid()),
            plan_digest=plan.digest,
            stages={"gateway": 1.0, "ready": 2.0},
            units=(UnitRecord("demo-decode-0", "decode", "failed", 4),),
        )
    )
    with folder.hold_lock():
        assert main(["up"]) == 0

    assert f"endpoint: {DEMO.endpoint}" in capsys.readouterr().out


def test_a_second_up_says_where_once_what_starts_answers(plan, folder, monkeypatch, capsys):
    """Whoever asks for what is coming up gets an endpoint that answers, as whoever was first."""
    here = {"supervisor": os.getpid(), "supervisor_began": start_ticks(os.getpid()), "plan_digest": plan.digest}
    ready = replace(DEMO.with_gateway(replace(DEMO.gateways[0], state="ready")), **here)
    waits = []

    def sleep(_):
        waits.append(capsys.readouterr().out)
        folder.write(ready)

    folder.write(replace(DEMO, **here))
    monkeypatch.setattr(deployment.time, "sleep", sleep)
    with folder.hold_lock():
        assert main(["up"]) == 0

    assert waits == [""]
    assert f"endpoint: {DEMO.endpoint}" in capsys.readouterr().out

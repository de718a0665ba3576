"""What is left of a cluster whose owner was killed: nothing, once the next one starts."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import cgroups, preconditions, runs
from tests.cluster.cluster import CLUSTER_PRODUCTS
from tests.cluster.network import lay_network
from tests.cluster.processes import Daemons

ROOT = Path(__file__).parents[2]
OWNER = """
import dataclasses, json, pathlib, sys, time
from kubernetes import client
from tests.cluster.cluster import running_cluster
from tests.cluster.runs import only_run

with only_run() as run, running_cluster(run, pathlib.Path(sys.argv[1])) as cluster:
    core = client.CoreV1Api(cluster.api)
    pod = {"containers": [{"name": "main", "image": cluster.image, "command": ["sleep", "3600"]}]}
    core.create_namespaced_pod("default", {"metadata": {"name": "one"}, "spec": pod})
    is_running = lambda: core.read_namespaced_pod("one", "default").status.phase == "Running"
    cluster.wait_until(is_running, "the pod runs", 60)
    print(json.dumps(dataclasses.asdict(run)), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def needs(toolchain):
    """All that a cluster needs is there, and none runs in these tests yet: tests with one come later."""
    preconditions.require(preconditions.missing_for_nodes())
    toolchain(*CLUSTER_PRODUCTS)


def traces(run):
    """Everything on this machine that is the run's: devices, routes, mounts, processes, cgroups, state."""
    names = (run.name, run.state, f"tidemill{run.number}")
    lines = "".join(Path(f"/proc/{name}").read_text() for name in ("net/dev", "net/route", "mounts")).splitlines()
    folders = [path for path in (run.folder, *cgroups.ROOT.glob(f"*/{run.name}")) if path.exists()]
    return [*(line for line in lines if any(name in line for name in names)), *processes(run), *folders]


def processes(run):
    """The daemons, marked in their environment, and the pods', which are in cgroups."""
    return [*runs._marked(run.name), *cgroups.processes(run.name)]


def wait_until(happened, timeout_s):
    """Poll; a failed assert at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nothing_is_left_of_a_run_that_fails(needs, tmp_path):
    """And the next one finds the machine as the failed one did."""
    started = []

    def fail_meanwhile():
        with runs.only_run() as run:
            started.append(run)
            lay_network(Daemons(tmp_path, environment=run.environment), run.number)
            cgroups.make(run.name, "node-0")
            assert traces(run)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_meanwhile()

    assert traces(started[0]) == []
    with runs.only_run() as following:
        assert following.made == started[0].made


def test_a_run_that_could_not_clean_leaves_it_to_the_next(tmp_path, monkeypatch):
    """Its process goes on without the lock, and must not take the next run's things away when it ends."""
    at_exit = []
    monkeypatch.setattr(runs, "PLACE", tmp_path)
    monkeypatch.setattr(runs, "MOUNT_POINTS", ())
    monkeypatch.setattr(runs, "cut", lambda number: None)  # a cluster may run, whose network has this number
    monkeypatch.setattr(runs.atexit, "register", lambda *call: at_exit.append(call))
    monkeypatch.setattr(runs.atexit, "unregister", lambda function: at_exit.clear())
    with monkeypatch.context() as stuck:
        stuck.setattr(runs, "_end_processes", fail_to_end)
        with pytest.raises(AssertionError, match="do not end"), runs.only_run() as failed:
            assert at_exit == [(runs._clean, failed)]
    with runs.only_run() as following:
        left = failed.folder.exists(), following.folder.exists()

    assert left == (False, True)
    assert at_exit == []


def fail_to_end(run):
    raise AssertionError(f"processes of {run.name} do not end")


def test_nothing_is_left_of_a_killed_run_when_the_next_starts(needs, tmp_path):
    """After a SIGKILL of its owner the kernel ends every daemon and pod; the next run removes the rest."""
    command = [sys.executable, "-c", OWNER, tmp_path]
    owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    fields = json.loads(owner.stdout.readline())
    run = runs.Run(**(fields | {"made": tuple(fields["made"])}))
    assert list(runs._marked(run.name))
    assert list(cgroups.processes(run.name))

    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: not processes(run), 10)

    with runs.only_run() as following:
        assert traces(run) == []
        assert following.made == run.made

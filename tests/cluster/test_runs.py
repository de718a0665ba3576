"""What is left of a cluster whose owner was killed: nothing, once the next one starts."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import cgroups, preconditions, runs
from tests.cluster.cluster import CLUSTER_PRODUCTS

ROOT = Path(__file__).parents[2]
OWNER = """
import pathlib, sys, time
from kubernetes import client
from tests.cluster.cluster import running_cluster

with running_cluster(pathlib.Path(sys.argv[1])) as cluster:
    core = client.CoreV1Api(cluster.api)
    pod = {"containers": [{"name": "main", "image": cluster.image, "command": ["sleep", "3600"]}]}
    core.create_namespaced_pod("default", {"metadata": {"name": "one"}, "spec": pod})
    runs = lambda: core.read_namespaced_pod("one", "default").status.phase == "Running"
    cluster.wait_until(runs, "the pod runs", 60)
    print(cluster.machines[0].run.name, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def needs(toolchain):
    """All that a cluster needs is there, and none runs in these tests yet: tests with one come later."""
    preconditions.require(preconditions.missing_for_nodes())
    toolchain(*CLUSTER_PRODUCTS)


def traces():
    """Everything on this machine that a cluster might leave."""
    words = {
        each for name in ("mounts", "net/dev", "net/route") for each in Path(f"/proc/{name}").read_text().split("\n")
    }
    names = {line.partition(":")[0] for line in words}
    folders = [
        *runs.MOUNT_POINTS,
        *map(str, Path("/tmp").glob("tidemill-*")),
        *map(str, cgroups.ROOT.glob("**/tidemill-*")),
    ]
    return {each for each in names if "tidemill" in each}, {each for each in folders if Path(each).exists()}


def wait_until(happened, timeout_s):
    """Poll; a failed assert at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nothing_is_left_of_a_killed_run_when_the_next_starts(needs, tmp_path):
    """After a SIGKILL of its owner the kernel ends every process and pod; the next run removes the rest."""
    with runs.only_run():
        pass
    before = traces()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    name = owner.stdout.readline().strip()
    assert list(runs._marked(name))
    assert list(cgroups.processes(name))
    assert traces() != before

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    wait_until(lambda: not list(runs._marked(name)), 10)
    wait_until(lambda: not list(cgroups.processes(name)), 10)
    with runs.only_run():
        pass
    assert traces() == before

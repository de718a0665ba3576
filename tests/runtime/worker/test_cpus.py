"""Ranks share the CPUs that their node may use, which in a pod are fewer than the machine's."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.worker import node
from runtime.worker.cpus import thread_environment, usable_cpus

MANY = 64


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Make a machine of 64 CPUs from files: path under its root -> content."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MANY)))

    def make(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path

    return make


V1 = "sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, MANY),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, MANY),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "800000 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n"}, 4),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/kubepods/pod/x\n", "sys/fs/cgroup/cpu.max": "600000 100000\n"}, 6),
        ({"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/x/cpu.max": "600000 100000\n"}, 6),
        (
            {
                "proc/self/cgroup": "9:memory:/\n4:cpu,cpuacct:/pod\n",
                f"{V1}/pod/cpu.cfs_quota_us": "500000\n",
                f"{V1}/pod/cpu.cfs_period_us": "100000\n",
                f"{V1}/cpu.cfs_quota_us": "-1\n",
                f"{V1}/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
        ({"proc/self/cgroup": "torn", "sys/fs/cgroup/cpu.max": "torn"}, MANY),
    ],
    ids=str,
)
def test_a_quota_of_the_control_group_counts(machine, files, cpus):
    """The narrowest group's quota counts, in whole CPUs and at least one; an unreadable one limits nothing."""
    assert usable_cpus(machine(files)) == cpus


def test_a_quota_larger_than_the_affinity_does_not_count(machine, monkeypatch):
    """A process that may run on two CPUs uses two, even if its quota is larger."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    root = machine({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "800000 100000\n"})

    assert usable_cpus(root) == 2


def test_this_process_may_use_some():
    """This process has at least one CPU by the real files."""
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("num_ranks", "threads"), [(1, "64"), (3, "21"), (64, "1"), (200, "1")])
def test_ranks_share_the_cpus_evenly(machine, monkeypatch, num_ranks, threads):
    """Ranks get equal numbers of threads, at least one each."""
    machine({})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("runtime.worker.cpus.usable_cpus", lambda: MANY)

    assert thread_environment(num_ranks) == {"OMP_NUM_THREADS": threads}


def test_a_number_of_threads_that_the_user_set_stays(monkeypatch):
    """A number of threads that the user has set is inherited."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    assert thread_environment(2) == {}


def test_a_node_gives_its_ranks_the_threads(monkeypatch):
    """On a node that may use two CPUs, each of its two ranks gets one thread."""
    environments = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: MANY)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(node, "Child", lambda name, arguments, environment: environments.append(environment))
    monkeypatch.setattr(node, "wait_together", lambda ranks, check: None)
    monkeypatch.setattr(node.signal, "signal", lambda *_: None)
    places = [SimpleNamespace(rank=rank, local_rank=rank) for rank in (0, 1)]
    launch = SimpleNamespace(unit="u", places=["n"], spares=[], place_ranks=lambda place: places)
    membership = SimpleNamespace(join=lambda: 0, check=lambda: None, is_whole=lambda: True)

    node.run_node(launch, Path("launch.json"), "n", membership, [], drain_s=0)

    assert environments == [{"OMP_NUM_THREADS": "1"}] * 2

"""One cluster at a time on a machine, and nothing left of it afterwards, however its run ended.

Nodes are made of things that the kernel takes away when the run dies: processes that die with it, and network devices,
routes and mounts that live in those processes' namespaces. What is left after a SIGKILL: the host's end of a cable, for
a while; cgroups, the folder of state, and empty folders made to mount on. A record says what they are, and the next run
removes them before it starts. A lock admits one run, for host routes and the folders that nodes mount on are shared.
"""

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.network import cut

__all__ = ["Run", "only_run"]

PLACE = Path("/run/tidemill-test-cluster")
MARK = "TIDEMILL_TEST_CLUSTER"  # environment variable of every process of a run
# What a node mounts on, in a mount namespace of its own. The kubelet's folder cannot be chosen: device plugins need it.
MOUNT_POINTS = ("/run/netns", "/run/containerd", "/var/lib/cni", "/var/log/containers", "/var/lib/kubelet")
GONE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Run:
    """What a run would leave behind. `name` marks its cgroups and processes."""

    pid: int
    started: str  # clock ticks after boot: with the pid, unique
    state: str  # folder of etcd's, containerd's and the kubelets' data
    made: tuple[str, ...]  # folders that were not there before

    @property
    def name(self) -> str:
        """Of its cgroup, and the mark of its processes."""
        return f"tidemill-{self.pid}-{self.started}"

    @property
    def number(self) -> int:
        """Of its network."""
        return self.pid % 256

    @property
    def folder(self) -> Path:
        """For state that is thrown away; its path is short, because sockets lie in it."""
        return Path(self.state)

    @property
    def environment(self) -> dict[str, str]:
        """For every process of the run."""
        return {MARK: self.name}


@contextlib.contextmanager
def only_run() -> Iterator[Run]:
    """Wait for other runs, remove what a dead one left, and afterwards what this one leaves."""
    PLACE.mkdir(exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        _wait_for(lock.fileno())
        _clean_what_another_run_left()
        run = _record()
        atexit.register(_clean, run)
        try:
            yield run
        finally:
            atexit.unregister(_clean)  # first: if cleaning fails, the next run cleans, and this one leaves it alone
            _clean(run)


def _wait_for(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("test cluster: waiting for another run on this machine to end", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _record() -> Run:
    """Of this process, on disk before anything is made."""
    made = tuple(path for path in _with_parents(MOUNT_POINTS) if not Path(path).exists())
    run = Run(os.getpid(), _started(os.getpid()), tempfile.mkdtemp(prefix="tidemill-cluster-"), made)
    (PLACE / "run.json").write_text(json.dumps(asdict(run)))
    for path in MOUNT_POINTS:
        Path(path).mkdir(parents=True, exist_ok=True)
    return run


def _with_parents(paths: tuple[str, ...]) -> list[str]:
    """Parents first."""
    return sorted({str(each) for path in paths for each in (Path(path), *Path(path).parents)})


def _clean_what_another_run_left() -> None:
    """Remove what the last holder of the lock left: it was killed, or could not clean.

    Whether its process is still there says nothing. One that was killed stays until its parent has asked for its
    status, and one that could not clean goes on with other tests.
    """
    with contextlib.suppress(FileNotFoundError):
        fields = json.loads((PLACE / "run.json").read_text())
        _clean(Run(**(fields | {"made": tuple(fields["made"])})))


def _clean(run: Run) -> None:
    """Nothing of the run is left; other things are not touched."""
    _end_processes(run)
    cut(run.number)
    cgroups.remove(run.name)
    shutil.rmtree(run.folder, ignore_errors=True)
    for path in reversed(run.made):
        with contextlib.suppress(OSError):  # not empty: somebody else uses it by now
            Path(path).rmdir()
    (PLACE / "run.json").unlink()


def _end_processes(run: Run) -> None:
    """The kernel is about to, where the run was killed; wait until it has."""
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while left := [*_marked(run.name), *cgroups.processes(run.name)]:
        assert time.monotonic() < deadline, f"processes {left} of {run.name} do not end"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _marked(name: str) -> Iterator[int]:
    mark = f"{MARK}={name}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


def _started(pid: int) -> str:
    """Field 22 of /proc/PID/stat; the second may contain anything, in parentheses."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]

"""The cgroups of a run: `/<run>/<node>` in every hierarchy, version 1 or 2. The kubelets make the rest below them.

Version 1 has a hierarchy for each controller; version 2 has one, where a parent passes controllers on. A machine that
mixes them is treated as version 1. Only version 1 has been run.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["make", "missing", "processes", "remove"]

ROOT = Path("/sys/fs/cgroup")
V1_HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
REMOVED_TIMEOUT_S = 10


def missing() -> list[str]:
    """What the kubelets would miss here, in words."""
    if _is_v2():
        there = (ROOT / "cgroup.controllers").read_text().split()
        lacking = [each for each in V2_CONTROLLERS if each not in there]
    else:
        lacking = [each for each in V1_HIERARCHIES if not (ROOT / each).is_dir()]
    if lacking:
        return [f"cgroup controllers {', '.join(lacking)} in {ROOT}"]
    return [f"write access to {each}" for each in _hierarchies() if not os.access(each, os.W_OK)]


def make(run: str, node: str) -> None:
    """The cgroup `/run/node`."""
    for hierarchy in _hierarchies():
        parent = hierarchy
        for name in (run, node):
            if _is_v2():
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in V2_CONTROLLERS))
            (parent / name).mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":  # a new one of version 1 is empty and admits no process
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (parent / name / file).write_text((parent / file).read_text())
            parent = parent / name


def processes(run: str) -> Iterator[int]:
    """Those in the run's cgroups."""
    for folder in _folders(run):
        with contextlib.suppress(OSError):  # removed meanwhile
            yield from map(int, (folder / "cgroup.procs").read_text().split())


def remove(run: str) -> None:
    """All cgroups of the run, which has no process any more. The kernel needs a moment to notice that."""
    deadline = time.monotonic() + REMOVED_TIMEOUT_S
    while left := list(_folders(run)):
        assert time.monotonic() < deadline, f"cgroups are still in use: {left}"
        for folder in reversed(left):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _folders(run: str) -> Iterator[Path]:
    """Parents first; in every hierarchy, for runc also uses one of version 2 beside those of version 1."""
    for top in (ROOT / run, *ROOT.glob(f"*/{run}")):
        if top.is_dir():
            yield top
            yield from sorted(path for path in top.rglob("*") if path.is_dir())


def _hierarchies() -> list[Path]:
    return [ROOT] if _is_v2() else [ROOT / each for each in V1_HIERARCHIES if (ROOT / each).is_dir()]


def _is_v2() -> bool:
    return (ROOT / "cgroup.controllers").exists()

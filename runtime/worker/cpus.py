"""The number of CPUs that this process may use, which in a pod is lower than the machine's.

    affinity    the CPUs that the scheduler may run it on: cpusets and `taskset`
    quota       the CPU time that its control group, and every group above, may use in a period: a pod's
                `resources.limits.cpu`

With more threads than the quota allows, threads wait for each other while the group is throttled. A quota is rounded
down to whole CPUs.

Sources: sched_setaffinity(2); Linux, Documentation/admin-guide/cgroup-v2.rst "CPU" (cpu.max), and
Documentation/scheduler/sched-bwc.rst (cpu.cfs_quota_us, of version 1).
"""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["thread_environment", "usable_cpus"]

THREADS = "OMP_NUM_THREADS"


def thread_environment(num_processes: int) -> dict[str, str]:
    """Return the environment variables that divide this process's CPUs among `num_processes`.

    Return none if the user has set a number of threads, which stays.
    """
    if os.environ.get(THREADS):
        return {}
    return {THREADS: str(max(1, usable_cpus() // num_processes))}


def usable_cpus(root: Path = Path("/")) -> int:
    """Return how many CPUs this process may use, at least 1. `root` is the folder of `proc` and `sys`."""
    quotas = [quota for folder in _control_groups(root) if (quota := _read_quota(folder)) is not None]
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group and of the groups above it, in both versions' hierarchies."""
    for line in _read_text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = root / "sys" / "fs" / "cgroup"
        if controllers:
            if "cpu" not in controllers.split(","):
                continue
            mount /= controllers
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts) + 1):  # a container may see the folder at a different path from the machine's
            yield mount.joinpath(*parts[:length])


def _read_quota(folder: Path) -> float | None:
    """Return the number of CPUs in the folder's quota; None if there is no limit."""
    quota, _, period = _read_text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    is_limited = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return int(quota) / int(period) if is_limited else None


def _read_text(path: Path) -> str:
    """Return the text of a file.

    Return an empty text if there is no such file, as outside Linux or in a container that hides it.
    """
    try:
        return path.read_text()
    except OSError:
        return ""

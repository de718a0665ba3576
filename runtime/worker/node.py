"""One node of a unit: the pod's process, which starts a process for each of its ranks and ends with them.

A node knows which ranks are its own by its name in the launch file. When a rank dies, the others here are killed and
the node ends with a sentence that names the cause; the ranks on other nodes notice by themselves.
It does not restart anything: Kubernetes, or `tidemill up`, decides that for the whole unit.
"""

import signal
import sys
from pathlib import Path

from runtime.errors import LaunchError, RuntimeFailure
from runtime.launch import UnitLaunch
from runtime.worker.children import Child, wait_together
from runtime.worker.cpus import threads_of_each

__all__ = ["run_node"]


def run_node(launch: UnitLaunch, launch_path: Path, node: str, addresses: list[str]) -> None:
    """Run this node's ranks until one ends. `addresses` are the flags that each rank gets. Raises RuntimeFailure.

    SIGTERM ends node and ranks: the first process of a pod has to ask for that, or the kernel ignores the signal.
    """
    signal.signal(signal.SIGTERM, _end)
    places = launch.ranks_of(node)
    if not places:
        known = ", ".join(sorted({place.node for place in launch.ranks}))
        raise LaunchError(f"unit {launch.unit} has no ranks on node {node!r}; its nodes are {known}")
    threads = threads_of_each(len(places))
    flags = ["rank", "--launch", str(launch_path), "--node", node, *addresses]
    ranks = [
        Child(f"{launch.unit} rank {place.rank}", [*flags, "--local-rank", str(place.local_rank)], threads)
        for place in places
    ]
    wait_together(ranks)
    raise RuntimeFailure(f"all ranks of unit {launch.unit} on {node} ended")


def _end(signal_number: int, _: object) -> None:
    sys.exit(128 + signal_number)  # the ranks end with `wait_together`

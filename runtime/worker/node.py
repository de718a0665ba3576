"""One node of a unit: the pod's process. It starts a process for each of its ranks, and ends with them.

A node asks the unit's leader for its place (`membership.py`), and starts that place's ranks. When a rank dies, the node
kills its other ranks and ends with a sentence that names the cause. Ranks on other nodes notice by themselves. The node
restarts nothing: Kubernetes or `tidemill up` decides that for the whole unit.

On SIGTERM the ranks drain, for as long as the caller allows (`draining.py`).
"""

import signal
import sys
from pathlib import Path

from runtime.errors import LaunchError
from runtime.launch import UnitLaunch
from runtime.worker.children import Child, wait_together
from runtime.worker.cpus import thread_environment
from runtime.worker.draining import Drain, end_at_once
from runtime.worker.membership import Membership

__all__ = ["run_node"]


def run_node(
    launch: UnitLaunch, launch_path: Path, node: str, membership: Membership, addresses: list[str], drain_s: float
) -> None:
    """Run this node's ranks until one ends. `addresses` are the flags that each rank gets.

    On SIGTERM the ranks answer their requests, for `drain_s` seconds at most, then node and ranks end. The handler is
    installed even without a drain, because the kernel does not deliver a signal to a pod's first process that has no
    handler for it. Raises RuntimeFailure if a rank fails.
    """
    signal.signal(signal.SIGTERM, end_at_once)
    _require_a_place(launch, node)
    place = membership.join()
    if node in launch.spares:
        print(f"tidemill: spare {node} takes the place of {launch.places[place]}", file=sys.stderr, flush=True)
    ranks = launch.place_ranks(place)
    threads = thread_environment(len(ranks))
    flags = ["rank", "--launch", str(launch_path), "--node", node, "--place", str(place), *addresses]
    children = [
        Child(f"{launch.unit} rank {each.rank}", [*flags, "--local-rank", str(each.local_rank)], threads)
        for each in ranks
    ]
    drain = Drain(children, drain_s, membership.is_whole)
    if drain_s:
        signal.signal(signal.SIGTERM, drain.begin)

    def check() -> None:
        membership.check()
        drain.check()

    wait_together(children, check)
    print(f"tidemill: the ranks of unit {launch.unit} on {node} have drained and ended", file=sys.stderr, flush=True)


def _require_a_place(launch: UnitLaunch, node: str) -> None:
    if node not in (*launch.places, *launch.spares):
        spares = f", its spares {', '.join(sorted(launch.spares))}" if launch.spares else ""
        known = ", ".join(sorted(launch.places)) + spares
        raise LaunchError(f"unit {launch.unit} has no place for node {node!r}; its nodes are {known}")

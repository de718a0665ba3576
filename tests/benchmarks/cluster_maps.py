"""A unit on three nodes of a real cluster switches from map to map under streams, as root:

    python -m tests.benchmarks.cluster_maps [--switches 20] [--precision fp32|bf16|fp8]

`pulumi up` brings the demo's model with a decode unit of a rank on each of three nodes, with NetworkPolicies enforced.
Four callers stream one answer after another. Maps drawn at random, refined for loads, and made for the loads that these
drift to are handed over as the controller does it: with its account's rights, by the ConfigMap that the first rank
reads. Each line has a switch: its bytes by the planner's diff and those that ranks received from others, and its
seconds and stall beside what the plan promises of the first and former ones of others (`stacks/measured/moved.py`).
Where a rank gets an expert twice, as by a map drawn at random, it may copy one itself.

Exits with 1 if a switch did not go through, an answer failed or had another text, the ranks moved other numbers of
experts than the diff has, or computed no row of them.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from kubernetes import client

from stacks.controller.act import write_next_epoch
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.measured.epochs import Rows, next_document
from stacks.measured.moved import promise, promise_of_plan
from tests.benchmarks.goals import Goals
from tests.benchmarks.live_maps import KINDS, make_maps
from tests.benchmarks.played_day import Streams, undisturbed
from tests.cluster.build import obtain
from tests.cluster.cluster import Cluster, running_cluster
from tests.cluster.cluster_day import deployment_of
from tests.cluster.controller.day import ACCOUNT, api_of_account
from tests.cluster.deployed import Deployed
from tests.cluster.live_unit import (
    NUM_RANKS,
    UNIT,
    bytes_of_diff,
    new_experts,
    pods_of,
    read_epoch_page,
    read_ranks,
    rows_of,
    slots_of_diff,
    totals_of,
    unit_deployed,
)
from tests.cluster.policies import enforced_policies
from tests.cluster.products import PULUMI
from tests.cluster.runs import only_run
from tests.stacks.deployments import total

NAMESPACE = "cluster-maps"
NEVER = {"every": "168h", "min_gain": 100, "max_bytes": "1kB"}  # the controller itself changes no map
ROWS_S = 60.0
SWITCHED_S = 120  # a kubelet brings a ConfigMap within a few seconds here, and busy ranks take a few more
POLL_S = 0.5


class Hands:
    """What the controller does to give a unit another map, with the rights of its account."""

    def __init__(self, deployed: Deployed) -> None:
        self._deployed, self._core = deployed, client.CoreV1Api(deployed.cluster.api)
        account = api_of_account(deployed.cluster.control_plane, ACCOUNT, deployed.namespace)
        self._api = Api(Connection(account))

    def write(self, content: str) -> None:
        """Write the document of the unit's next epoch, and have the kubelet look at the first rank's pod at once."""
        write_next_epoch(self._api, deployment_of(self._deployed), UNIT, content)
        first, stamp = pods_of(self._deployed)[0].metadata.name, {"example.com/look": str(time.time())}
        self._core.patch_namespaced_pod(first, self._deployed.namespace, {"metadata": {"annotations": stamp}})

    def hand_over(self, rows: Rows) -> None:
        """Let the unit follow another map, and wait until it does."""
        document = next_document(read_epoch_page(self._deployed), rows)
        self.write(json.dumps(document))
        until = time.monotonic() + SWITCHED_S
        while read_epoch_page(self._deployed)["digest"] != document["digest"]:
            assert time.monotonic() < until, self.log()
            time.sleep(POLL_S)

    def log(self) -> str:
        """Return the log of the first rank's pod."""
        first = pods_of(self._deployed)[0].metadata.name
        said: str = self._core.read_namespaced_pod_log(first, self._deployed.namespace)
        return said


def switch_on(deployed: Deployed, streams: Streams, goals: Goals, number: int) -> None:
    """Hand over so many maps, print what each switch took, and hold all of them against the goals."""
    hands, rows = Hands(deployed), read_epoch_page(deployed)["physical_to_logical"]
    former, differing, idle, shares = [], 0, 0, []
    print("kind      MB of the diff  received  seconds  promised  stall ms  promised  rows", flush=True)
    for count, wanted in enumerate(make_maps(number, NUM_RANKS, 5, len(rows[0]))):
        ranks = read_ranks(deployed)
        hands.hand_over(wanted)
        after = read_ranks(deployed)
        moved, told = totals_of(after).since(totals_of(ranks)), bytes_of_diff(deployed.plan, rows, wanted)
        planned = promise_of_plan(deployed.plan.live_maps["decode"], wanted, NUM_RANKS, told)
        promised = promise(former, planned)
        computed = _wait_for_rows(deployed, after, new_experts(rows, wanted))
        differing += _sum(after, "experts") - _sum(ranks, "experts") != slots_of_diff(deployed.plan, rows, wanted)
        idle += not computed
        shares.append((moved.seconds / promised.seconds, moved.stall_s / promised.stall_s))
        seconds = f"{moved.seconds:>9.1f}{promised.seconds:>10.1f}"
        stall = f"{1e3 * moved.stall_s:>10.0f}{1e3 * promised.stall_s:>10.0f}"
        bytes_ = f"{told / 1e6:>14.1f}{moved.num_bytes / 1e6:>10.1f}"
        print(f"{KINDS[count % len(KINDS)]:<10}{bytes_}{seconds}{stall}{computed:>6.0f}", flush=True)
        rows = wanted
        former.append(moved)
    goals.check("switches that went through", read_epoch_page(deployed)["number"], "==", number)
    goals.check("switches that moved other numbers of experts than the diff has", differing, "==", 0)
    goals.check("switches whose moved experts computed no row", idle, "==", 0)
    goals.check("failed or other answers", len(streams.wrong), "==", 0)
    goals.check("answers", len(streams.answers), ">=", number)
    goals.check("switches that led back", _sum(read_ranks(deployed), "undone"), "==", 0)
    for what, found in zip(("seconds", "stall"), zip(*shares, strict=True), strict=True):
        print(f"{what} over promised: median {median(found):.2f}, {min(found):.2f} to {max(found):.2f}")


def _wait_for_rows(deployed: Deployed, before: list, experts: set) -> float:
    """Return how many rows the ranks have computed of these experts since `before`, once there are any."""
    until, computed = time.monotonic() + ROWS_S, 0.0
    while not computed and time.monotonic() < until:
        time.sleep(1)
        computed = rows_of(read_ranks(deployed), experts) - rows_of(before, experts)
    return computed


def _sum(ranks: list, what: str) -> float:
    """Return the sum over ranks of what they count of their switches."""
    return sum(total(rank, f"tidemill_expert_moves_{what}_total") for rank in ranks)


def _run(cluster: Cluster, folder: Path, number: int, precision: str) -> int:
    made = unit_deployed(obtain(PULUMI), folder, cluster, NAMESPACE, NEVER, precision)
    run = made.pulumi.up()
    assert run.status == 0, run.output
    goals, host = Goals(), made.endpoint().removeprefix("http://").partition(":")[0]
    with Streams(host, undisturbed(host)) as streams:
        switch_on(made, streams, goals, number)
    print(f"{UNIT} on {', '.join(pod.spec.node_name for pod in made.pods(UNIT))}: {len(streams.answers)} answers")
    print("\n".join(streams.wrong[:10]))
    print(f"load average {os.getloadavg()[0]:.1f}")
    made.pulumi.destroy()
    return goals.report()


def main() -> int:
    """Bring up a cluster and the unit, switch, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp8"), default="fp32")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    for part in ("cluster", "stack"):
        (folder / part).mkdir()
    with only_run() as run, running_cluster(run, folder / "cluster") as cluster, enforced_policies(cluster):
        return _run(cluster, folder / "stack", arguments.switches, arguments.precision)


if __name__ == "__main__":
    sys.exit(main())

"""Nodes of a real cluster that become faulty under streams: `python -m tests.benchmarks.faulty_nodes`, as root.

A prefill unit and two decode units have a node each, and there is a spare. One node is cordoned, then the spare reports
a fault, then a node is destroyed and never comes back. Nobody does anything about it but the controller, with
`kubernetes.controller.heal`. Prints how long it took until the unit served again elsewhere.

Exits with 1 if an answer failed, was cut short, or had another text than before.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from kubernetes import client

from tests.benchmarks.played_day import Streams, undisturbed
from tests.cluster.build import obtain
from tests.cluster.cluster import running_cluster
from tests.cluster.cluster_day import NAME, day_deployed, hh_mm_in, look
from tests.cluster.products import PULUMI
from tests.cluster.runs import only_run

NAMESPACE, SPARE = "faulty-nodes", "node-3"
DECODE = [f"{NAME}-decode-{index}" for index in (0, 1)]
MOVED_S = 400
POLL_S = 0.5
SOON = [
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "seconds": 10}
    for state in ("not-ready", "unreachable")
]


def main():
    """Break three nodes one after another, and say what became of units and answers."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    folder = Path(tempfile.mkdtemp())
    for part in ("cluster", "stack"):
        (folder / part).mkdir()
    with only_run() as run, running_cluster(run, folder / "cluster") as cluster:
        deployed = deploy(cluster, folder / "stack")
        address = deployed.endpoint().removeprefix("http://").partition(":")[0]
        with Streams(address, undisturbed(address)) as streams:
            unit = lonely_unit(deployed)
            core = client.CoreV1Api(cluster.api)
            say("cordoned", moved(deployed, unit, lambda node: core.patch_node(node, cordon(True))), streams)
            for node in cluster.nodes:
                core.patch_node(node, cordon(None))
            say("reports a fault", moved(deployed, unit, lambda node: report(core, node)), streams)
            report(core, SPARE, "False")
            time.sleep(40)  # until the controller has taken its taint away
            say("destroyed", moved(deployed, unit, cluster.crash_node), streams)
    for each in streams.wrong[:20]:
        print(each)
    return 1 if streams.wrong else 0


def deploy(cluster, folder):
    """Three units and a spare, up."""
    windows = [
        {"at": hh_mm_in(-60), "prefill_units": 1, "decode_units": 2},
        {"at": hh_mm_in(12 * 60), "prefill_units": 1, "decode_units": 1},
    ]
    kubernetes = {"namespace": NAMESPACE, "controller": {"heal": {}}, "tolerations": SOON, "drain": "30s"}
    deployed = day_deployed(
        obtain(PULUMI),
        folder,
        cluster,
        NAMESPACE,
        schedule={"windows": windows, "drain": "1min"},
        kubernetes=kubernetes,
    )
    deployed.change_spec(lambda spec: spec["cluster"].update(spares=[SPARE]))
    done = deployed.pulumi.up()
    assert done.status == 0, done.output
    return deployed


def lonely_unit(deployed):
    """A decode unit whose node has neither the gateway nor the controller, which would be lost with it."""
    others = {pod.spec.node_name for owner in ("gateway", "controller") for pod in deployed.pods(f"{NAME}-{owner}")}
    return next(unit for unit in DECODE if node_of(deployed, unit) not in others)


def node_of(deployed, unit):
    """The node of its only pod; none while that waits."""
    return next((pod.spec.node_name for pod in deployed.pods(unit)), None)


def moved(deployed, unit, break_node):
    """Break the unit's node. Return both nodes, and the seconds until it is ready on the other."""
    before, began = node_of(deployed, unit), time.monotonic()
    break_node(before)
    while node_of(deployed, unit) in (None, before) or "decode 2/2" not in look(deployed).status["units"]:
        assert time.monotonic() < began + MOVED_S, look(deployed).words
        time.sleep(POLL_S)
    return before, node_of(deployed, unit), time.monotonic() - began


def cordon(is_on):
    return {"spec": {"unschedulable": is_on}}


def report(core, node, status="True"):
    """What a node problem detector writes."""
    found = {"type": "GPUMissing", "status": status, "reason": "GPUMissing", "message": ""}
    core.patch_node_status(node, {"status": {"conditions": [found]}})


def say(what, how, streams):
    before, after, seconds = how
    print(
        f"{before} {what}: ready on {after} after {seconds:.0f} s; {len(streams.answers)} answers so far, "
        f"{len(streams.wrong)} wrong",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())

"""What the controller asks of an API server: `python -m tests.benchmarks.controller_requests`.

The published system, at night, with nodes that are lent and units that leave faulty ones: 38 units on 278 nodes, and
seven times as many on 1,946. The API server is real. There are no kubelets: units are ready because their status says
so. Rounds follow each other at once, each with the time that it would have, and every answer's bytes are counted.

Exits with 1 if a round takes longer than the time between two, or a minute more than 120 requests.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import yaml
from kubernetes import client

from planner.compiler import compile_plan
from planner.facts.names import DEPLOYMENT_KIND, UNIT_OBJECTS
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import check_spec
from stacks.controller.act import FIELD_MANAGER
from stacks.controller.follower import Follower
from stacks.controller.lease import Lease
from stacks.controller.loop import PERIOD_S, run_round
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from tests.benchmarks.day_on_fake_nodes import SPARES, write_spec
from tests.benchmarks.goals import Goals
from tests.cluster.control_plane import Address, running_api_server
from tests.cluster.definitions import OUR_DEFINITION, serve_definitions
from tests.cluster.fake_nodes import NUM_NODES, h800_nodes
from tests.cluster.leaderworkersets import serve_leaderworkersets
from tests.cluster.processes import Daemons
from tests.cluster.published import NAME, NAMESPACE

NIGHT = datetime(2026, 12, 1, 21, 0, tzinfo=UTC).timestamp()  # 05:00 in Shanghai: most units are off
MINUTES = 5
THREADS = 8
LWS = ("leaderworkerset.x-k8s.io", "v1", NAMESPACE, "leaderworkersets")
KINDS = ("Namespace", UNIT_OBJECTS["leaderworkerset"][1], DEPLOYMENT_KIND)


def main():
    """Measure both sizes, and hold them against the goals."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    goals = Goals()
    for times in (1, 7):
        measure(times, goals)
    return goals.report()


def measure(times, goals):
    """Rounds of some minutes of a night, after those in which units go and nodes are marked."""
    folder, nodes = Path(tempfile.mkdtemp()), h800_nodes(times * NUM_NODES)
    plan = compile_plan(check_spec(night_spec(folder, nodes, times)))
    with running_api_server(Daemons(folder), Address.on_loopback()) as control_plane:
        serve_leaderworkersets(control_plane)
        serve_definitions(control_plane, [OUR_DEFINITION])
        create(control_plane.api, plan, [*nodes, *SPARES])
        connection = Counted(control_plane.api)
        api = Api(connection)
        lease = Lease(NAMESPACE, f"{NAME}-controller", "benchmark", FIELD_MANAGER)
        following = Follower(api, NAMESPACE, NAME, lease, lambda _: None)
        for number in range(12):
            run_round(following, NIGHT + number * PERIOD_S)
        see_drained(control_plane.api)
        connection.counted.clear()
        rounds = [timed(following, NIGHT + 60 + number * PERIOD_S) for number in range(round(MINUTES * 60 / PERIOD_S))]
    counted = connection.counted
    requests = sum(number for name, number in counted.items() if name != "bytes") / MINUTES
    print(
        f"{len(plan.units)} units on {len(nodes)} nodes: {requests:.0f} requests and"
        f" {counted['bytes'] / MINUTES / 1e6:.1f} MB a minute; rounds of {sum(rounds) / len(rounds) * 1e3:.0f} ms,"
        f" at most {max(rounds) * 1e3:.0f}; {counted}",
        flush=True,
    )
    goals.check(f"{len(nodes)} nodes: API requests a minute", requests, "<=", 120)
    goals.check(f"{len(nodes)} nodes: seconds of the longest round", max(rounds), "<=", PERIOD_S)


def night_spec(folder, nodes, times):
    """The published system's, so many times, whose controller does all that asks the API server something."""
    path = write_spec(folder, 1, nodes, times)
    document = yaml.safe_load(path.read_text())
    document["kubernetes"]["controller"] = {"lend_nodes": True, "heal": {}}
    path.write_text(yaml.safe_dump(document))
    return path


def create(api, plan, nodes):
    """All nodes, the day and its units, which are on and ready; those that are off have no pods."""
    core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
    objects = Api(Connection(api))
    for text in (text for name, text in render_files(plan).items() if name != KUSTOMIZATION):
        manifest = yaml.safe_load(text)
        if manifest["kind"] in KINDS:
            objects.apply(manifest, force=False)
    condition = {"type": "Available", "status": "True", "reason": "AllGroupsReady", "message": ""}
    status = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1}
    conditions = [condition | {"lastTransitionTime": "2026-12-01T00:00:00Z"}]

    def report(unit):
        custom.patch_namespaced_custom_object_status(*LWS, unit.name, {"status": status | {"conditions": conditions}})

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda node: core.create_node(node.manifest), nodes))
        list(threads.map(report, plan.units))


def see_drained(api):
    """Say of all units that are off what LeaderWorkerSet's controller would."""
    custom = client.CustomObjectsApi(api)
    for unit in custom.list_namespaced_custom_object(*LWS)["items"]:
        if not unit["spec"]["replicas"]:
            seen = {"observedGeneration": unit["metadata"]["generation"], "replicas": 0, "updatedReplicas": 0}
            custom.patch_namespaced_custom_object_status(*LWS, unit["metadata"]["name"], {"status": seen})


class Counted(Connection):
    """A connection that counts requests by verb and last word, and bytes of answers."""

    def __init__(self, api):
        super().__init__(api)
        self.counted = Counter()
        call = api.call_api

        def counting(verb, url, *words, **more):
            response = call(verb, url, *words, **more)
            kinds = ("nodes", "pods", "leaderworkersets", "deployments", "leases", "events")
            self.counted[verb, next((kind for kind in kinds if f"/{kind}" in url), url)] += 1
            self.counted["bytes"] += len(response.read())
            return response

        api.call_api = counting


def timed(following, now):
    """The seconds of a round."""
    began = time.perf_counter()
    run_round(following, now)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())

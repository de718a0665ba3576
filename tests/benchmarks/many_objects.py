"""How long `pulumi up` takes for 300 objects: `python -m tests.benchmarks.many_objects [--objects 300] [--runs 3]`.

Each is a resource of its own: a namespace, and in it ConfigMaps of two kilobytes and Services, by turns. Engine,
provider and API server are the real ones. Nothing has to become ready, so what is timed is the making alone. Then comes
a preview that finds nothing to do. Each figure is the median of its runs; the test cluster's programs must be built
(`python -m tests.cluster.build`).

Exits with 1 if making them takes over 10 s, or a preview over 3.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.goals import Goals
from tests.cluster.build import obtain
from tests.cluster.cluster import NODE_GRACE_S
from tests.cluster.control_plane import Address, running_api_server, start_controllers
from tests.cluster.processes import Daemons
from tests.cluster.products import PULUMI
from tests.cluster.pulumi import Pulumi

MOST_UP_S, MOST_PREVIEW_S = 10, 3
NAMESPACE = "many"
KINDS = ("v1/Namespace", "v1/ConfigMap", "v1/Service")


def main():
    """Make them, look, and remove them, a few times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--objects", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    folder, seconds = Path(tempfile.mkdtemp()), {"up": [], "preview": []}
    with running_api_server(Daemons(folder), Address.on_loopback()) as control_plane:
        start_controllers(control_plane, node_grace_s=NODE_GRACE_S)
        stack = Pulumi.of_manifests(obtain(PULUMI), folder / "stack", control_plane.kubeconfig)
        stack.set_manifests(*manifests(arguments.objects), kinds=KINDS)
        for _ in range(arguments.runs):
            seconds["up"].append(timed(stack.up))
            seconds["preview"].append(timed(lambda: stack.preview("--expect-no-changes")))
            assert stack.destroy().status == 0
    for name, each in seconds.items():
        print(f"{name:8} {', '.join(f'{one:.1f}' for one in each)} s")
    goals = Goals()
    goals.check(f"up of {arguments.objects} objects, s", statistics.median(seconds["up"]), "<=", MOST_UP_S)
    goals.check("preview of no change, s", statistics.median(seconds["preview"]), "<=", MOST_PREVIEW_S)
    return goals.report()


def manifests(number):
    """A namespace, and what fills it."""
    labels = {"app.kubernetes.io/managed-by": "tidemill"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    return [namespace, *(service(place) if place % 2 else config_map(place) for place in range(number - 1))]


def config_map(place):
    """As large as a small launch file."""
    metadata = {"name": f"settings-{place}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"launch.json": "x" * 2048}}


def service(place):
    """Of a unit: its ranks find each other by names."""
    metadata = {"name": f"unit-{place}", "namespace": NAMESPACE}
    spec = {"clusterIP": "None", "selector": {"unit": str(place)}, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def timed(command):
    """The seconds that a command takes, which must succeed."""
    began = time.perf_counter()
    done = command()
    assert done.status == 0, done
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())

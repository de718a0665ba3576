"""How long `pulumi up` takes for 300 objects: `python -m tests.benchmarks.many_objects [--objects 300] [--runs 3]`.

Units of three objects, each unit one resource, as our own program declares them; then every object as a resource of its
own. Engine, provider and API server are the real ones. Nothing has to become ready, so what is timed is the making
alone. Then comes a preview that finds nothing to do. Each figure is the median of its runs; the test cluster's programs
must be built (`python -m tests.cluster.build`).

Exits with 1 if making the units takes over 10 s, or their preview over 3.
"""

import argparse
import json
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
PROGRAM = """
import json
from pathlib import Path

from pulumi import ResourceOptions

from stacks.provider.resource import Object, Objects, Provider

given = json.loads((Path(__file__).parent / "units.json").read_text())
options = ResourceOptions(provider=Provider("cluster", None, ["v1/Namespace", "v1/ConfigMap", "v1/Service"]))
options = ResourceOptions.merge(options, ResourceOptions(depends_on=Object("many", given["namespace"], options)))
for name, unit in given["units"].items():
    if given["together"]:
        Objects(name, unit, options)
    else:
        for key, manifest in unit.items():
            Object(f"{name}-{key}", manifest, options)
"""


def main():
    """Make them, look, and remove them, a few times each way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--objects", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    with running_api_server(Daemons(folder), Address.on_loopback()) as control_plane:
        start_controllers(control_plane, node_grace_s=NODE_GRACE_S)
        stack = Pulumi.of_manifests(obtain(PULUMI), folder / "stack", control_plane.kubeconfig)
        (stack.program / "__main__.py").write_text(PROGRAM)
        up, preview = measured(stack, arguments, together=True)
        measured(stack, arguments, together=False)
    goals = Goals()
    goals.check(f"up of {arguments.objects} objects in units, s", up, "<=", MOST_UP_S)
    goals.check("preview of no change, s", preview, "<=", MOST_PREVIEW_S)
    return goals.report()


def measured(stack, arguments, *, together):
    """The median seconds of `up`, and of a preview after it."""
    given = {"namespace": namespace(), "units": units(arguments.objects), "together": together}
    (stack.program / "units.json").write_text(json.dumps(given))
    seconds = {"up": [], "preview": []}
    for _ in range(arguments.runs):
        seconds["up"].append(timed(stack.up))
        seconds["preview"].append(timed(lambda: stack.preview("--expect-no-changes")))
        assert stack.destroy().status == 0
    print("units of three objects" if together else "each object by itself")
    for name, each in seconds.items():
        print(f"  {name:8} {', '.join(f'{one:.1f}' for one in each)} s", flush=True)
    return statistics.median(seconds["up"]), statistics.median(seconds["preview"])


def namespace():
    """Where they are."""
    labels = {"app.kubernetes.io/managed-by": "tidemill"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def units(num_objects):
    """Name -> its objects: what its ranks read, and the two names under which they are found."""
    return {
        f"unit-{number}": {
            "ConfigMap": manifest("ConfigMap", f"unit-{number}", data={"launch.json": "x" * 2048}),
            "Service": manifest("Service", f"unit-{number}", spec=service_of(number)),
            "Leader": manifest("Service", f"unit-{number}-leader", spec=service_of(number)),
        }
        for number in range(num_objects // 3)
    }


def manifest(kind, name, **content):
    """An object of the core group."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **content}


def service_of(number):
    """A headless one: its ranks find each other before they are ready."""
    return {"clusterIP": "None", "selector": {"unit": str(number)}, "publishNotReadyAddresses": True}


def timed(command):
    """The seconds that a command takes, which must succeed."""
    began = time.perf_counter()
    done = command()
    assert done.status == 0, done
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())

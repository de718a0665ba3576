"""How long `pulumi up` of the published system takes beside server-side apply of the same folder, in the same run.

`python -m tests.benchmarks.up_on_fake_nodes [ENGINE]`, exit 1 on a missed goal. Both bring 38 units of the engine, ours
or `sglang`, to 278 fake nodes (`tests/cluster/fake_nodes.py`) until every group and the gateway are ready. Then each
pod has to be on a node of its unit. They take turns on one cluster, which gets slower with all that it has seen, so
every second round is in the other order, and each turn begins when the cluster has come to rest.

The folder is what `tidemill render` writes, planned beforehand. `kubectl apply --server-side -k` of the cluster's own
release applies it. `up` is the whole command: it starts Python, plans, checks, applies and waits. Goals: `up` at most
1.5 times as long, and a preview of no change under 10 s. Figures are medians.

The test cluster's programs must be built (`python -m tests.cluster.build`); kubectl is built at the first call.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import yaml
from kubernetes import client

from planner.compiler import compile_plan
from planner.facts.engines import OURS
from planner.facts.names import UNIT_LABEL
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import check_spec
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.kube.lifecycle import delete
from stacks.kube.manifest import Reference
from stacks.kube.readiness import missing
from stacks.kube.waiting import Patience
from tests.benchmarks.goals import Goals
from tests.cluster.build import obtain
from tests.cluster.deployed import new_stack
from tests.cluster.fake_nodes import create_nodes, h800_nodes, running_control_plane_for_fake_nodes
from tests.cluster.products import PULUMI, TOOLCHAIN, Product
from tests.cluster.published import NAMESPACE, bound_nodes, write_published_spec

KUBECTL = Product("kubectl", TOOLCHAIN / "kubernetes", "k8s.io/kubernetes/cmd/kubectl")
ROUNDS = 4  # an even number
MOST_TIMES_AS_LONG = 1.5
MAX_PREVIEW_S = 10
TIMEOUT_S = 600
REST_S = 8  # in which controllers end what the turn before has left them
POLL_S = 0.5


def main(engine):
    """Measure by turns, and hold the figures against the goals."""
    obtain(KUBECTL)  # not while the clock runs
    folder = Path(tempfile.mkdtemp())
    spec = write_published_spec(folder, engine)
    plan = compile_plan(check_spec(spec))
    rendered = write_files(folder / "rendered", render_files(plan))
    manifests = [yaml.safe_load(path.read_text()) for path in rendered if path.name != KUSTOMIZATION]
    (folder / "cluster").mkdir()
    seconds = {"kubectl": [], "up": [], "preview": []}
    with running_control_plane_for_fake_nodes(folder / "cluster") as control_plane:
        create_nodes(control_plane, h800_nodes())
        api = Api(Connection(control_plane.api))
        stack = new_stack(obtain(PULUMI), folder / "stack", control_plane.kubeconfig, spec)

        def by_kubectl():
            act = partial(run_kubectl, api, manifests, folder / "rendered", control_plane.kubeconfig)
            seconds["kubectl"].append(timed(act))
            require_places(control_plane, plan)
            clear(api, manifests)

        def by_up():
            seconds["up"].append(timed(lambda: succeed(stack.up())))
            require_places(control_plane, plan)
            seconds["preview"].append(timed(lambda: succeed(stack.preview("--expect-no-changes"))))
            succeed(stack.destroy())

        for number in range(ROUNDS):
            for act in (by_kubectl, by_up) if number % 2 == 0 else (by_up, by_kubectl):
                time.sleep(REST_S)
                act()
    return report(len(manifests), seconds)


def report(num_objects, seconds):
    """Print every run; the exit status."""
    for name, each in seconds.items():
        print(f"{name:8} {', '.join(f'{one:.1f}' for one in each)} s")
    usual = {name: statistics.median(each) for name, each in seconds.items()}
    goals = Goals()
    ratio = usual["up"] / usual["kubectl"]
    goals.check(f"up / kubectl apply of {num_objects} objects", ratio, "<=", MOST_TIMES_AS_LONG)
    goals.check("preview of no change, seconds", usual["preview"], "<", MAX_PREVIEW_S)
    return goals.report()


def timed(act):
    """The seconds that `act` takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def succeed(done):
    """A command must have."""
    assert done.status == 0, getattr(done, "output", done)


def write_files(folder, files):
    """Write the files, and return their paths in the same order."""
    folder.mkdir()
    paths = [folder / name for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    return paths


def run_kubectl(api, manifests, folder, kubeconfig):
    """Apply the folder as its owner would, then wait for all."""
    command = [str(obtain(KUBECTL)), "apply", "--server-side", "-k", str(folder)]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    wait_until_ready(api, manifests)


def wait_until_ready(api, manifests):
    """Look until nothing is missing."""
    deadline = time.monotonic() + TIMEOUT_S
    waiting = manifests
    while waiting := [each for each in waiting if missing(api.get(Reference.from_manifest(each)))]:
        assert time.monotonic() < deadline, f"{len(waiting)} objects are not ready"
        time.sleep(POLL_S)


def require_places(control_plane, plan):
    """Every unit has all of its nodes, and no other."""
    pods = client.CoreV1Api(control_plane.api).list_namespaced_pod(NAMESPACE, label_selector=UNIT_LABEL).items
    assert bound_nodes(pods) == {unit.name: set(unit.nodes) for unit in plan.units}


def clear(api, manifests):
    """Delete the namespace, and wait until it is gone."""
    (namespace,) = (each for each in manifests if each["kind"] == "Namespace")
    delete(api, namespace, Patience(TIMEOUT_S, threading.Event(), lambda text: None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else OURS))

"""Turns whose controller is killed after each of its acts, on a real LeaderWorkerSet controller.

`python -m tests.benchmarks.killed_turns [--kills 20] [--seed 0]`, exit 1 on a missed goal; three minutes.

The demo's day with four units that are all on, on eight fake nodes. `tidemill controller` is a process. It gets SIGKILL
right after it has started or drained a unit, or up to a second later, and the next one starts at once. When a change is
carried out the next one is applied. The lease is deleted after each kill: else the next controller would wait for 15 s,
in which nothing is done. Which units are ready is looked at all the while.

`--lose-node` instead deletes a Node in the middle of a turn, of a unit that serves, kills the controller, and says what
becomes of it.
"""

import argparse
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml
from kubernetes import client

from planner.manifests.render import KUSTOMIZATION, render_files
from tests.benchmarks.goals import Goals
from tests.cluster.controller.day import ACCOUNT, LWS, NAME, NAMESPACE, UNITS, deployment
from tests.cluster.definitions import OUR_DEFINITION, serve_definitions
from tests.cluster.fake_nodes import FakeNode, create_nodes, running_control_plane_for_fake_nodes
from tests.cluster.objects import Objects
from tests.stacks.controller.day_spec import day_plan

ALL_DAY = {"windows": [{"at": "00:00", "prefill_units": 2, "decode_units": 2}]}
NUM_NODES, LOOK_S, PATIENCE_S = 10, 0.1, 120
SPARES = ["node-8", "node-9"]
PHASES = ("prefill", "decode")


class Day:
    """The deployment, the looks at it, and what a controller has said since the last kill."""

    def __init__(self, control_plane, folder):
        self.control_plane, self.folder = control_plane, folder
        self.custom, self.core = client.CustomObjectsApi(control_plane.api), client.CoreV1Api(control_plane.api)
        self.objects = Objects(control_plane.api, str(folder / "discovery.json"))
        self.fewest, self.is_over = Counter(dict.fromkeys(PHASES, 2)), threading.Event()

    def apply(self, revision):
        """Apply the day with this revision of all templates."""
        told = {"namespace": NAMESPACE, "drain": "5s", "controller": {"heal": {}}, "env": {"REVISION": str(revision)}}
        folder = self.folder / str(revision)
        folder.mkdir()
        plan = day_plan(
            folder, cluster={"nodes": NUM_NODES, "spares": SPARES}, phases={"ep_size": 2}, schedule=ALL_DAY, **told
        )
        for name, text in render_files(plan).items():
            if name != KUSTOMIZATION:
                self.objects.apply(yaml.safe_load(text))

    def watch(self):
        """Note the fewest ready units of each phase until it is over."""
        while not self.is_over.wait(LOOK_S):
            units = self.custom.list_namespaced_custom_object(*LWS)["items"]
            ready = Counter(each["metadata"]["labels"]["tidemill.dev/phase"] for each in units if is_ready(each))
            self.fewest = Counter({phase: min(self.fewest[phase], ready[phase]) for phase in PHASES})

    def changes(self):
        return deployment(self.custom).get("status", {}).get("changes", [])

    def is_settled(self, revision):
        """Whether every pod has this revision, all units are ready, and the status says so."""
        pods = self.core.list_namespaced_pod(NAMESPACE, label_selector="tidemill.dev/unit").items
        found = {each.value for pod in pods for each in pod.spec.containers[0].env if each.name == "REVISION"}
        units = self.custom.list_namespaced_custom_object(*LWS)["items"]
        conditions = deployment(self.custom).get("status", {}).get("conditions", [])
        is_said = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
        return is_said and found == {str(revision)} and sum(map(is_ready, units)) == len(UNITS)

    @contextmanager
    def controller(self):
        """A controller that runs, and is killed at the end if it still does. A killed one before has left its lease."""
        with suppress(client.ApiException):
            client.CoordinationV1Api(self.control_plane.api).delete_namespaced_lease(ACCOUNT, NAMESPACE)
        command = [str(Path(sys.executable).with_name("tidemill")), "controller", f"{NAMESPACE}/{NAME}"]
        environment = os.environ | {"KUBECONFIG": str(self.control_plane.kubeconfig)}
        process = subprocess.Popen([*command, "--context", "test"], env=environment, stdout=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def is_ready(unit):
    return unit["spec"]["replicas"] == 1 and unit.get("status", {}).get("readyReplicas") == 1


def wait_until(is_true, what):
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(LOOK_S)


def act_and_die(day, revision, draw):
    """Run a controller until it acts, and kill it then or a while later. Return the act, and the revision by then.

    Once a change is carried out, the next one is applied.
    """
    acts = queue.SimpleQueue()
    with day.controller() as process:
        threading.Thread(
            target=lambda: [acts.put(each) for each in process.stdout if is_act(each)], daemon=True
        ).start()
        while acts.empty():
            if day.is_settled(revision):
                revision += 1
                day.apply(revision)
            time.sleep(LOOK_S)
        time.sleep(draw.choice((0.0, draw.uniform(0, 1))))
    return acts.get().split(" ", 1)[1].strip(), revision


def is_act(line):
    return " drain " in line or " start " in line


def kill_again_and_again(day, kills, draw):
    """Change after change, with a kill at each act. Return the number of changes."""
    revision = 1
    for number in range(kills):
        act, revision = act_and_die(day, revision, draw)
        print(f"kill {number + 1}: {act}", flush=True)
    with_controller(day, lambda: day.is_settled(revision), "the last change is carried out")
    return revision - 1


def with_controller(day, is_true, what):
    with day.controller() as process:
        wait_until(is_true, what)
        time.sleep(6)  # another round, which ends the change
        process.terminate()
        print(process.communicate()[0])


def lose_a_node(day):
    """Delete the Node of the second prefill unit while the first takes its turn."""
    day.apply(2)
    victim = f"{NAME}-prefill-1"
    with day.controller() as process:
        next(line for line in process.stdout if f" drain {NAME}-prefill-0" in line)
        node = day.core.read_namespaced_pod(f"{victim}-0", NAMESPACE).spec.node_name
        day.core.delete_node(node)
        print(f"deleted {node} of {victim}")
    with_controller(day, lambda: day.is_settled(2), "every unit is back, with the new template")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lose-node", action="store_true")
    arguments = parser.parse_args()
    goals = Goals()
    with tempfile.TemporaryDirectory() as folder, running_control_plane_for_fake_nodes(Path(folder)) as control_plane:
        create_nodes(control_plane, [FakeNode(f"node-{index}", "rack", "leaf") for index in range(NUM_NODES)])
        serve_definitions(control_plane, [OUR_DEFINITION])
        day = Day(control_plane, Path(folder))
        day.apply(1)
        with_controller(day, lambda: day.is_settled(1), "the first deployment is carried out")
        threading.Thread(target=day.watch, daemon=True).start()
        began = time.monotonic()
        if arguments.lose_node:
            lose_a_node(day)
        else:
            num_changes = kill_again_and_again(day, arguments.kills, random.Random(arguments.seed))
            print(f"{arguments.kills} kills in {num_changes} changes, {time.monotonic() - began:.0f} s")
            recorded = day.changes()
            complete = [each for each in recorded if {unit["name"] for unit in each["units"]} == {*UNITS}]
            goals.check("fewest ready prefill units", day.fewest["prefill"], ">=", 1)
            goals.check("fewest ready decode units", day.fewest["decode"], ">=", 1)
            goals.check("changes carried out, with all units", len(complete), "==", min(num_changes, 5))
            kept = [each for each in recorded if each["least"] == each["promised"]["least"]]
            goals.check("changes whose least is as promised", len(kept), "==", min(num_changes, 5))
        day.is_over.set()
        print(yaml.safe_dump(day.changes()[-1]), dict(day.fewest))
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())

"""A deployment's changes by the real `kubectl apply -k` or `pulumi up`; our controller gives their turns.

`python -m tests.benchmarks.applied_changes kubectl|up`, exit 1 on a missed goal. What `tests/cluster/test_flux.py` does
by Flux is done here by another tool, on the same fake nodes: the first deployment, without a controller; the
controller together with a new template; one prefill unit more, orders by `kubectl patch` and `tidemill force`, an edit
by hand, a decode unit on the node of a prefill unit that leaves, a unit that leaves, maps for new loads, a new
template, one that cannot start, the former one again, and a unit that leaves while the others get a new template. Each
change must do what its diff has said: the units, what becomes of them, and the fewest that serve. Pods that a change
leaves alone must keep their UIDs. At last the controller leaves, and comes back, and all is destroyed by
`pulumi destroy`. Neither may leave a unit that the controller still had to delete.

Kubectl is built at the first call.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

from kubernetes import client

from planner.compiler import compile_plan
from planner.diff.diff import compare_plans
from planner.facts.day import MINUTE_S
from planner.facts.digest import pretty_json
from planner.facts.names import UNIT_LABEL
from planner.rules.check import check_spec
from stacks.cli import main as tidemill
from stacks.controller.health import Health
from stacks.controller.loop import follow
from stacks.kube.manifest import parse_instant
from tests.benchmarks.goals import Goals
from tests.benchmarks.up_on_fake_nodes import KUBECTL
from tests.cluster.build import obtain
from tests.cluster.controller.day import (
    ACCOUNT,
    NAME,
    NAMESPACE,
    SECOND,
    UNITS,
    api_of_account,
    condition,
    deployment,
    following_as,
    last_change,
    promised_by,
)
from tests.cluster.definitions import OUR_DEFINITION, serve_definitions
from tests.cluster.deployed import listing, new_stack
from tests.cluster.fake_nodes import FakeNode, create_nodes, running_control_plane_for_fake_nodes
from tests.cluster.products import PULUMI
from tests.stacks.controller.day_spec import write_day

NUM_NODES, PATIENCE_S, LOOK_S = 5, 180, 0.2
GATEWAY = f"{NAME}-gateway"


class Day:
    """The deployment, and the tool that applies it."""

    def __init__(self, control_plane, folder, tool):
        self.control_plane, self.folder, self.tool = control_plane, folder, tool
        self.custom, self.core = client.CustomObjectsApi(control_plane.api), client.CoreV1Api(control_plane.api)
        self.environment = os.environ | {"KUBECONFIG": str(control_plane.kubeconfig)}
        self.plan, self.former, self.stack = None, folder / "former.json", None

    def write(self, prefill_units=2, decode_units=2, loads=None, **kubernetes):
        """Write the spec with these fields of `kubernetes`. Return what the diff says, None of the first one."""
        windows = [{"at": "00:00", "prefill_units": prefill_units, "decode_units": decode_units}]
        place = {"namespace": NAMESPACE, "create_namespace": False}
        told = place | {"drain": "5s", "ready_timeout": "20s", "env": {"REVISION": "1"}} | kubernetes
        sizes = {"cluster": {"nodes": NUM_NODES, "gpus_per_node": 2}, "phases": {"ep_size": 2, "redundant_experts": 2}}
        spec = write_day(self.folder, schedule={"windows": windows}, loads=loads, **sizes, **told)
        before, self.plan = self.plan, compile_plan(check_spec(spec), self.plan)
        if before:
            self.former.write_text(pretty_json(before.as_json()))
        if self.tool == "kubectl":
            with redirect_stdout(StringIO()) as said:
                assert tidemill(["render", str(spec), "-o", str(self.folder / "deploy"), "--format", "json"]) == 0
            return json.loads(said.getvalue()).get("diff")
        return before and compare_plans(before, self.plan).as_json()

    def apply(self, *more):
        """Have the tool apply what was written. Return its exit status and its words."""
        if self.tool == "kubectl":
            done = self.kubectl("apply", "--server-side", *more, "-k", str(self.folder / "deploy"))
            return done.returncode, done.stdout + done.stderr
        if self.stack is None:
            kubeconfig, spec = self.control_plane.kubeconfig, self.folder / "spec.yaml"
            self.stack = new_stack(obtain(PULUMI), self.folder / "stack", kubeconfig, spec)
        elif self.former.exists():
            self.stack.run("config", "set", "previous", str(self.former))
        done = self.stack.up()
        return done.status, done.output

    def kubectl(self, *words):
        command = [str(obtain(KUBECTL)), *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    @contextmanager
    def controller(self):
        """Follow the day as the controller's pod would, with its rights; KWOK's pod does nothing."""
        ended, follower = threading.Event(), following_as("one", api_of_account(self.control_plane, ACCOUNT))
        thread = threading.Thread(target=follow, args=(follower, ended.is_set, lambda _: ended.wait(LOOK_S), Health()))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def wait(self, is_true, what):
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            assert time.monotonic() < deadline, f"{what}: {deployment(self.custom).get('status')}"
            time.sleep(LOOK_S)

    def are_all_running(self):
        """Whether every unit has its pod."""
        return len(self.pods()) == len(UNITS)

    def is_ready(self):
        """Whether the plan is carried out. Before the first look there is no condition."""
        return "conditions" in deployment(self.custom)["status"] and condition(self.custom, "Ready")[0] == "True"

    def last_change(self):
        """As the status has it; None before the first one."""
        return next(reversed(deployment(self.custom)["status"].get("changes", [])), None)

    def is_carried_out(self, former):
        """Whether another change than the `former` one is over."""
        last = self.last_change()
        return last is not None and last != former and "ended" in last

    def pods(self):
        """Name -> uid of the units' pods that run."""
        found = self.core.list_namespaced_pod(NAMESPACE, label_selector=UNIT_LABEL).items
        return {each.metadata.name: each.metadata.uid for each in found if each.status.phase == "Running"}

    def ports(self):
        """Return the ports of the gateway's Service."""
        return [each.to_dict() for each in self.core.read_namespaced_service(GATEWAY, NAMESPACE).spec.ports]


def change(day, goals, what, num_kept, **fields):
    """Make one change, and hold it against its diff. `num_kept` pods must stay as they are."""
    before, former, started = day.pods(), day.last_change(), time.monotonic()
    said = day.write(**fields)
    status, words = day.apply()
    applied_s = time.monotonic() - started
    day.wait(lambda: day.is_carried_out(former), f"{what} is carried out")
    print(f"{what}: applied in {applied_s:.0f} s, carried out after {time.monotonic() - started:.0f} s", flush=True)
    if status:
        print(words[-2000:], flush=True)
    describe(said, day.last_change())
    goals.check(f"{what}: exit status", status, "==", 0)
    goals.check(f"{what}: pods left alone", len(before.items() & day.pods().items()), "==", num_kept)
    goals.check(f"{what}: units and least as promised", int(last_change(day.custom) == promised_by(said)), "==", 1)


def describe(diff, done):
    """Print what the diff had promised, and what the controller has recorded.

    Return the seconds that the diff had promised, those that the controller had, and those that it took.
    """
    way = diff["ways"]["git"]
    fewest = {phase: f"{each['units']} of {each['of_units']}" for phase, each in way["least_units"].items()}
    print(f"  promised: {way['verdict']}, {_in_minutes(way['seconds'])}, at least {fewest}")
    order = ", ".join(f"{each['change']} {each['name'].removeprefix(f'{NAME}-')}" for each in done["units"])
    fewest = {phase: f"{each['units']} of {each['ofUnits']}" for phase, each in done["least"].items()}
    took_s = parse_instant(done["ended"]) - parse_instant(done["began"])
    print(f"  happened: {order}; {_in_minutes(took_s)}, at least {fewest}")
    by_controller = done["promised"]["seconds"]
    print(
        f"  seen / promised: {took_s / way['seconds']:.2f} by the diff, {took_s / by_controller:.2f} by the controller"
    )
    sys.stdout.flush()
    return way["seconds"], by_controller, took_s


def _in_minutes(seconds):
    return f"{seconds / MINUTE_S:.1f} min ({seconds:.0f} s)"


def bring_controller(day, goals):
    """One change brings the controller and a new template: units keep their pods until it gives them their turns."""
    before = day.pods()
    said = day.write()
    status, words = day.apply()
    print(words[-2000:] if status else "", end="")
    goals.check("a controller and a new template: exit status", status, "==", 0)
    goals.check("a controller and a new template: pods before turns", len(before.items() & day.pods().items()), "==", 4)
    return said


def give_orders(day, goals):
    """`hold` by kubectl and `force` by our command, through three applies."""
    hold = json.dumps({"spec": {"hold": {"until": "2100-01-01T00:00:00Z"}}})
    patched = day.kubectl("patch", "tidemill", NAME, "-n", NAMESPACE, "--type", "merge", "-p", hold)
    assert patched.returncode == 0, patched.stderr
    force = [Path(sys.executable).with_name("tidemill"), "force", f"{NAMESPACE}/{NAME}", "--state", "00:00"]
    subprocess.run([*force, "--until", "1h"], env=day.environment, check=True)
    given = {name: deployment(day.custom)["spec"][name] for name in ("hold", "force")}
    for number in range(3):
        status, words = day.apply()
        assert status == 0, words
        live = deployment(day.custom)["spec"]
        goals.check(f"orders that stay, apply {number + 1}", sum(live.get(n) == given[n] for n in given), "==", 2)
    day.wait(lambda: condition(day.custom, "Following")[1] == "Held", "the day is held")
    nothing = json.dumps({"spec": {"hold": None, "force": None}})
    day.kubectl("patch", "tidemill", NAME, "-n", NAMESPACE, "--type", "merge", "-p", nothing)


def edit_by_hand(day, goals):
    """Another port of the gateway's Service: the tool says so, and puts it back."""
    before = day.ports()
    edit = json.dumps([{"op": "replace", "path": "/spec/ports/0/targetPort", "value": 1}])
    edited = day.kubectl("patch", "service", GATEWAY, "-n", NAMESPACE, "--type", "json", "-p", edit)
    assert edited.returncode == 0, edited.stderr
    if day.tool == "kubectl":
        found = "conflict" in day.apply()[1]
        status, words = day.apply("--force-conflicts")
    else:
        found = GATEWAY in day.stack.preview("--refresh").changes
        status, words = day.apply()
    goals.check("an edit by hand: found", int(found), "==", 1)
    goals.check("an edit by hand: exit status", status, "==", 0)
    goals.check("an edit by hand: put back", int(day.ports() == before), "==", 1)
    if status:
        print(words[-2000:], flush=True)


def fail_and_go_back(day, goals):
    """A template that no node admits stops after one unit of a phase; the former one heals it."""
    before = day.pods()
    day.write(env={"REVISION": "3"}, node_selector={"pool": "nowhere"})
    print("a template that cannot start:", day.apply()[0], flush=True)
    day.wait(lambda: condition(day.custom, "Current")[1] == "Stopped", "the change stops")
    stopped, failed = day.pods(), day.last_change()
    day.write(env={"REVISION": "2"})
    status, words = day.apply()
    day.wait(lambda: day.is_ready() and day.is_carried_out(failed), "it is healed")
    after = day.pods()
    goals.check("a template that cannot start: pods that serve on", len(before.items() & stopped.items()), "==", 2)
    goals.check("the former one: exit status", status, "==", 0)
    if status:
        print(words[-2000:], flush=True)
    kept = {unit for unit in UNITS if after.get(f"{unit}-0") == before[f"{unit}-0"]}
    goals.check("the former one: second units left alone", int(kept == SECOND), "==", 1)


def leave_while_held(day, goals):
    """A unit leaves while the controller may not delete it."""
    hold = json.dumps({"spec": {"hold": {"until": "2100-01-01T00:00:00Z"}}})
    day.kubectl("patch", "tidemill", NAME, "-n", NAMESPACE, "--type", "merge", "-p", hold)
    day.write(prefill_units=1, decode_units=1, env={"REVISION": "4"})
    status, words = day.apply()
    print(words[-2000:] if status else "", end="")
    goals.check("a unit that leaves while held: exit status", status, "==", 0)
    goals.check("a unit that leaves while held: pods", len(day.pods()), "==", 3)


def lose_controller(day, goals):
    """A plan without the controller; the units of the plan keep their pods."""
    before = day.pods()
    day.write(prefill_units=1, decode_units=1, env={"REVISION": "4"}, controller=None)
    status, words = day.apply()
    print(words[-2000:] if status else "", end="")
    goals.check("no controller any more: exit status", status, "==", 0)
    goals.check("no controller any more: pods", len(day.pods()), "==", 2)
    goals.check("no controller any more: pods left alone", len(before.items() & day.pods().items()), "==", 2)
    day.write(prefill_units=1, env={"REVISION": "4"})
    status, words = day.apply()
    assert status == 0, words


def destroy(day, goals, before):
    """Destroy everything but the namespace."""
    done = day.stack.destroy()
    print(done.output[-2000:] if done.status else "", end="")
    goals.check("destroy: exit status", done.status, "==", 0)
    left = objects_in_namespace(day.control_plane) - before
    print(f"left: {sorted(left)}" if left else "", end="")
    goals.check("destroy: objects left", len(left), "==", 0)


def objects_in_namespace(control_plane):
    return {each for each in listing(control_plane.api) if each[1] == NAMESPACE}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tool", choices=["kubectl", "up"])
    tool = parser.parse_args().tool
    obtain(KUBECTL)  # not while the clock runs
    goals, folder = Goals(), Path(tempfile.mkdtemp())
    (folder / "cluster").mkdir()
    with running_control_plane_for_fake_nodes(folder / "cluster") as control_plane:
        create_nodes(control_plane, [FakeNode(f"node-{index}", "rack", "leaf") for index in range(NUM_NODES)])
        serve_definitions(control_plane, [OUR_DEFINITION])
        day = Day(control_plane, folder, tool)
        day.core.create_namespace({"metadata": {"name": NAMESPACE}})
        before = objects_in_namespace(control_plane)
        day.write(controller=None, env={})
        status, words = day.apply()
        assert status == 0, words
        day.wait(day.are_all_running, "the first deployment is carried out")
        said = bring_controller(day, goals)
        with day.controller():
            day.wait(lambda: day.is_ready() and day.is_carried_out(None), "the template is carried out")
            describe(said, day.last_change())
            what = "a controller and a new template: units and least as promised"
            goals.check(what, int(last_change(day.custom) == promised_by(said)), "==", 1)
            change(day, goals, "one more prefill unit", len(UNITS), prefill_units=3)
            give_orders(day, goals)
            edit_by_hand(day, goals)
            change(day, goals, "a decode unit in place of a prefill unit", len(UNITS), decode_units=3)
            change(day, goals, "a unit that leaves", len(UNITS))
            goals.check("a unit that leaves: pods", len(day.pods()), "==", len(UNITS))
            change(day, goals, "maps for new loads", 0, loads={"alpha": 1.2, "seed": 1})
            change(day, goals, "a new template", 0, env={"REVISION": "2"})
            fail_and_go_back(day, goals)
            what = "a unit that leaves, and a new template"
            change(day, goals, what, 0, prefill_units=1, env={"REVISION": "4"})
            if tool == "up":
                leave_while_held(day, goals)
        if tool == "up":
            lose_controller(day, goals)
            with day.controller():
                day.wait(day.is_ready, "the controller is back")
                leave_while_held(day, goals)
                destroy(day, goals, before)
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())

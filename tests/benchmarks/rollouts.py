"""Rollouts on a real cluster under streams, as root.

`python -m tests.benchmarks.rollouts [--controller up|kubectl [--quick]]`.

Two prefill and two decode units of two ranks each serve. `pulumi up` brings a new expert map, the map of before, a new
image, the image of before, and an image that cannot be had, while callers stream one answer after another. The gateway
has the units' image, so it changes with them. Prints how long each took, which units were left as they were, and what
became of the answers.

With `--controller` a controller gives the turns, `pulumi up` or `kubectl apply` brings the changes, and one more
follows: the image of before, which heals what the bad one has stopped. Each change that is carried out must do what its
diff has said, in half to twice the seconds. How long a start takes depends on what else the machine does, so the spec
has the longest start of one unit of each phase at a time: of a pair that is restarted first, and then of the change
before. Callers pause between answers, since they take the time of the same cores. A table has promised and seen
seconds, and the machine's load. With `--quick` there are only three changes, which are carried out.

Exits with 1 if an answer failed, was cut short or had another text than before, if a unit was not changed that had to
be, or if the bad image was not undone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import yaml
from kubernetes import client

from planner.diff.diff import compare_plans
from planner.facts.names import UNIT_LABEL
from planner.schedule.starts import MAPS_S, READY_S
from stacks.cli import main as tidemill
from tests.benchmarks.applied_changes import describe
from tests.benchmarks.goals import Goals
from tests.benchmarks.played_day import Streams, undisturbed
from tests.benchmarks.up_on_fake_nodes import KUBECTL
from tests.cluster.build import obtain
from tests.cluster.cluster import running_cluster
from tests.cluster.cluster_day import NAME, day_deployed, deployment_of, hh_mm_in
from tests.cluster.controller.day import NAMESPACE, last_change, promised_by
from tests.cluster.images import SAME_IMAGE
from tests.cluster.products import PULUMI
from tests.cluster.runs import only_run
from tests.stacks.deployments import wait_until

TURNS_S = 900  # of a busy machine
UNITS = [f"{NAME}-{phase}-{index}" for phase in ("prefill", "decode") for index in (0, 1)]
OTHER_LOAD = {"alpha": 1.2, "seed": 1}
JOIN_S = 1
DRAIN = "15s"  # a turn is promised with all of it; an answer takes 2 s, and longer while units start
PAUSE_S = 4.0  # of a caller, where seconds are held against their promise
QUICK = ("a new expert map", "a new image", "the image of before")


def main():
    """Roll out and back, and say what became of units and answers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--controller", choices=["up", "kubectl"])
    parser.add_argument("--quick", action="store_true", help="only changes whose seconds are promised")
    arguments = parser.parse_args()
    tool = arguments.controller
    if arguments.quick and tool is None:
        parser.error("--quick needs --controller")
    obtain(KUBECTL)
    folder, goals = Path(tempfile.mkdtemp()), Goals()
    for part in ("cluster", "stack"):
        (folder / part).mkdir()
    with only_run() as run, running_cluster(run, folder / "cluster") as cluster:
        deployed = deploy(cluster, folder / "stack", tool)
        load = yaml.safe_load(deployed.spec.read_text())["expert_load"]
        address = deployed.endpoint().removeprefix("http://").partition(":")[0]
        maps = map_of(deployed)
        timings = []
        with Streams(address, undisturbed(address), PAUSE_S if tool else 0.0) as streams:
            if tool:
                restart_a_pair(deployed)
            for what, change, is_right in (
                ("a new expert map", lambda spec: spec.update(expert_load=OTHER_LOAD), True),
                ("the map of before", lambda spec: spec.update(expert_load=load), True),
                ("a new image", lambda spec: spec["kubernetes"].update(image=SAME_IMAGE), True),
                ("the image of before", lambda spec: spec["kubernetes"].update(image=cluster.image), True),
                ("an image that cannot be had", lambda spec: spec["kubernetes"].update(BAD), False),
                ("the image that can be had", lambda spec: spec["kubernetes"].update(image=cluster.image), True),
            )[: 6 if tool else 5]:
                if arguments.quick and what not in QUICK:
                    continue
                timings += rolled(deployed, streams, goals, what, change, tool, is_right=is_right)
                if what == "a new expert map":
                    goals.check("expert maps that are others", int(map_of(deployed) != maps), "==", 1)
        tried = [pod.spec.containers[0].image for pod in deployed.pods(f"{NAME}-gateway")]
        goals.check("gateways of the image that cannot be had", tried.count(BAD["image"]), "==", 0)
        goals.check("answers that failed, were cut short, or had another text", len(streams.wrong), "==", 0)
        print(f"{len(streams.answers)} answers")
    for each in streams.wrong[:20]:
        print(each)
    print(*timings_table(timings), sep="\n")
    return goals.report()


BAD = {"image": "localhost/nobody:1", "ready_timeout": "30s"}


def deploy(cluster, folder, tool):
    """All units on, each of two ranks, so that a map can be another one."""
    windows = [
        {"at": hh_mm_in(-60), "prefill_units": 2, "decode_units": 2},
        {"at": hh_mm_in(12 * 60), "prefill_units": 1, "decode_units": 1},
    ]
    two_ranks = {"ep_size": 2, "redundant_experts": 2}
    deployed = day_deployed(
        obtain(PULUMI),
        folder,
        cluster,
        NAMESPACE,
        schedule={"windows": windows},
        cluster={"gpus_per_node": 2},
        prefill=two_ranks,
        decode=two_ranks,
        kubernetes={"namespace": NAMESPACE} | ({"controller": {}, "drain": DRAIN} if tool else {"controller": None}),
    )
    if tool is None:
        deployed.change_spec(lambda spec: spec["kubernetes"].pop("overlay"))
    status, words = apply(deployed, tool)
    assert status == 0, words
    if tool:
        wait_until(lambda: conditions(deployed).get("Ready", ("", ""))[0] == "True", TURNS_S)
    if tool == "kubectl":
        wait_until(lambda: is_answering(deployed), TURNS_S)
    return deployed


def apply(deployed, tool):
    """Bring the spec to the cluster. Return exit status and words."""
    if tool != "kubectl":
        run = deployed.pulumi.up()
        return run.status, run.output
    rendered = deployed.spec.parent / "rendered"
    with redirect_stdout(StringIO()):
        assert tidemill(["render", str(deployed.spec), "-o", str(rendered)]) == 0
    command = [str(obtain(KUBECTL)), "apply", "--server-side", "-k", str(rendered)]
    environment = os.environ | {"KUBECONFIG": str(deployed.cluster.kubeconfig)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def is_answering(deployed):
    """Whether the gateway takes calls."""
    gateway = client.AppsV1Api(deployed.cluster.api).read_namespaced_deployment(f"{NAME}-gateway", NAMESPACE)
    return gateway.status.available_replicas


def map_of(deployed):
    """The experts of a decode unit's slots."""
    plan = deployed.plan
    return plan.unit_document(plan.units_of("decode")[0])["expert_map"]


def rolled(deployed, streams, goals, what, change, tool, *, is_right):
    """One change, and the turns of a controller: its time, the pods that are others, and answers so far.

    Return a row of the table of seconds, or none where none are promised.
    """
    before, so_far, began = {unit: deployed.uids(unit) for unit in UNITS}, len(streams.answers), time.monotonic()
    plan, former = deployed.plan, changes(deployed)[-1:] if tool else []
    heals = bool(former) and former[0].get("outcome") != "CarriedOut"
    deployed.change_spec(change)
    if tool:
        start_s = max(starts_s(deployed)[-2:])
        print(f"{what}: the last pair of units started in {start_s:.0f} s")
        deployed.change_spec(lambda spec: spec["schedule"].update(start=stages_of(start_s)))
    status, words = apply(deployed, tool)
    if tool:
        print(f"{what}: applied in {time.monotonic() - began:.0f} s, exit status {status}", flush=True)
        wait_until(lambda: turns_are_over(deployed, former, is_right=is_right), TURNS_S)
    seconds = time.monotonic() - began
    same = [unit for unit in UNITS if before[unit] & deployed.uids(unit)]
    print(f"{what}: {seconds:.0f} s, {len(streams.answers) - so_far} answers meanwhile, untouched: {same}", flush=True)
    is_refused = not is_right and tool != "kubectl"  # kubectl awaits nothing
    if is_refused == (status == 0):
        print(words[-3000:], flush=True)
    goals.check(f"{what}: exit status is 0", int(status == 0), "==", int(not is_refused))
    num_same = ("==", 0) if is_right and not heals else (">=", 2)
    goals.check(f"{what}: units that were left as they were", len(same), *num_same)
    if tool and is_right and not heals:
        said, done = compare_plans(plan, deployed.plan).as_json(), changes(deployed)[-1]
        by_diff, by_controller, seen = describe(said, done)
        objects = client.CustomObjectsApi(deployed.cluster.api)
        goals.check(f"{what}: units and least as promised", int(last_change(objects) == promised_by(said)), "==", 1)
        goals.check(f"{what}: requests that failed", done.get("failed", 0), "==", 0)
        goals.check(f"{what}: seconds seen / promised", seen / by_diff, ">=", 0.5)
        goals.check(f"{what}: seconds seen / promised", seen / by_diff, "<=", 2)
        return [(what, by_diff, by_controller, seen, seen / by_diff, os.getloadavg()[0])]
    return []


def timings_table(rows):
    """Yield the lines of a table of promised and seen seconds; none without rows."""
    if rows:
        yield f"{'change':<20} {'diff s':>8} {'controller s':>12} {'seen s':>8} {'seen/diff':>9} {'load':>5}"
    for what, by_diff, by_controller, seen, ratio, load in rows:
        yield f"{what:<20} {by_diff:>8.0f} {by_controller:>12.0f} {seen:>8.0f} {ratio:>9.2f} {load:>5.1f}"


def restart_a_pair(deployed):
    """Make the first unit of each phase anew, as in a turn, so that the first change is promised by such a start."""
    pair = UNITS[0], UNITS[2]
    before = {unit: deployed.uids(unit) for unit in pair}
    for unit in pair:
        client.CoreV1Api(deployed.cluster.api).delete_namespaced_pod(f"{unit}-0", NAMESPACE)
    wait_until(lambda: not any(before[unit] & deployed.uids(unit) for unit in pair), TURNS_S)
    wait_until(lambda: len(starts_s(deployed)) == len(UNITS), TURNS_S)
    wait_until(lambda: conditions(deployed)["Ready"][0] == "True", TURNS_S)


def starts_s(deployed):
    """Return the seconds from creation to readiness of each unit's pod that is ready and stays, the newest last."""
    pods = client.CoreV1Api(deployed.cluster.api).list_namespaced_pod(NAMESPACE, label_selector=UNIT_LABEL).items
    return [
        (each.last_transition_time - pod.metadata.creation_timestamp).total_seconds()
        for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)
        for each in pod.status.conditions or ()
        if (each.type, each.status) == ("Ready", "True") and pod.metadata.deletion_timestamp is None
    ]


def stages_of(start_s):
    """The stages of a start that takes so long in all, as somebody who has measured one writes them."""
    return {"pods": f"{max(start_s - JOIN_S - MAPS_S - READY_S, 1):.0f}s", "join": f"{JOIN_S}s"}


def turns_are_over(deployed, former, *, is_right):
    """Whether another change than the `former` one is carried out, or has stopped where it cannot be."""
    if not is_right:
        return conditions(deployed)["Current"] == ("False", "Stopped")
    last = changes(deployed)[-1:]
    return last != former and "ended" in last[0] and conditions(deployed)["Ready"][0] == "True"


def conditions(deployed):
    """Condition -> its status and reason."""
    found = deployment_of(deployed).get("status", {}).get("conditions", [])
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def changes(deployed):
    """What the controller has recorded."""
    return deployment_of(deployed).get("status", {}).get("changes", [])


if __name__ == "__main__":
    sys.exit(main())

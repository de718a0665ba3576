"""DeepSeek's day on 278 fake nodes, followed by the real controller, which is killed again and again.

`python -m tests.benchmarks.day_on_fake_nodes [--days 2] [--pace 144] [--kills 20] [--failures 4] [--seed 0]`, exit 1 on
a missed goal. Two days take 20 minutes. What 1,946 nodes ask of an API server, `controller_requests` measures: two
cores do not bring up so many fake pods.

API server, scheduler, controllers and LeaderWorkerSet are real; KWOK says of every pod that it runs. `tidemill
controller` is a process with the rights of its own account. It is killed at random moments and started again at once.
Some nodes of units that serve are deleted, as a cloud's controller removes them, and come back three hours of the day
later. Two nodes more are spares. A unit keeps one that it has taken until the evening, so that a third has to wait.

What is looked at every second: which units are ready, and which nodes have pods. A unit that lost a node is short until
it is back; only such a unit may be missed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import floor
from pathlib import Path

import yaml
from kubernetes import client

from planner.compiler import compile_plan
from planner.facts.names import DEPLOYMENT_KIND, PLAN_LABEL, UNIT_LABEL, UNIT_OBJECTS, controller_name
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import check_spec
from planner.spec.yaml import parse_document
from stacks.controller.follower import Follower
from stacks.controller.loop import PERIOD_S, run_round
from stacks.controller.observe import find_deployment
from stacks.controller.spec import read_clock
from stacks.day.clock import changes_between, state_at, units_at
from stacks.day.runs import runs_between
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.kube.readiness import missing
from tests.benchmarks.goals import Goals
from tests.benchmarks.up_on_fake_nodes import wait_until_ready
from tests.cluster.definitions import OUR_DEFINITION, serve_definitions
from tests.cluster.fake_nodes import (
    NUM_NODES,
    FakeNode,
    create_nodes,
    h800_nodes,
    running_control_plane_for_fake_nodes,
)
from tests.cluster.published import NAME, NAMESPACE, write_published_spec

DAY_S = 86_400
LOOK_S = 1.0
WARM_UP = (
    "75min"  # 31 s at the pace of 144: a fake start takes 10 s on two cores, and a lease outlives its holder by 15
)
REPAIRED_S = 3 * 3600  # of the day; by then the unit is on a spare, if there is one left
SPARES = [FakeNode(f"spare-{index}", rack="rack-spare", leaf="leaf-8") for index in (0, 1)]


@dataclass
class Seen:
    """What a run has shown."""

    num_looks: int = 0
    short: list[str] = field(default_factory=list)  # looks at which a phase had fewer ready units than the day wants
    short_by_failure_s: float = 0.0
    states: set[int] = field(default_factory=set)  # instants at which they began
    exact: set[int] = field(default_factory=set)  # of those that were there exactly as planned
    racks: dict[str, set[int]] = field(default_factory=dict)  # state -> racks without pods, once it was settled
    recoveries: list[float] = field(default_factory=list)
    num_kills: int = 0


def main():
    """Play the days, and hold what was seen against the goals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=float, default=2)
    parser.add_argument("--pace", type=float, default=144)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--failures", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    nodes = h800_nodes(NUM_NODES)
    plan = compile_plan(check_spec(write_spec(folder, arguments.pace, nodes, times=1)))
    (folder / "cluster").mkdir()
    with running_control_plane_for_fake_nodes(folder / "cluster") as control_plane:
        create_nodes(control_plane, [*nodes, *SPARES])
        serve_definitions(control_plane, [OUR_DEFINITION])
        api = Api(Connection(control_plane.api))
        manifests = [yaml.safe_load(text) for name, text in render_files(plan).items() if name != KUSTOMIZATION]
        apply_all(api, [each for each in manifests if each["kind"] != DEPLOYMENT_KIND])
        apply_all(api, [each for each in manifests if each["kind"] == DEPLOYMENT_KIND])
        requests = requests_a_minute(api)
        seen = play(control_plane, api, plan, nodes, arguments)
    return report(plan, seen, requests, arguments)


def apply_all(api, manifests):
    """Apply one after the other, then wait for all."""
    for each in manifests:
        api.apply(each, force=False)
    wait_until_ready(api, manifests)


def write_spec(folder, pace, nodes, times):
    """The published system's, so many times, with spares and a controller; image and mounts are nobody's here."""
    path = write_published_spec(folder)
    document = parse_document(path.read_text(), path.name).data  # YAML 1.1 takes times of day for numbers
    for window in document["schedule"]["windows"]:
        window |= {key: times * number for key, number in window.items() if key != "at"}
    document["cluster"]["nodes"] = [each.inventory for each in (*nodes, *SPARES)]
    document["cluster"]["spares"] = [each.name for each in SPARES]
    document["schedule"]["warm_up"] = WARM_UP
    document["kubernetes"]["controller"] = {"pace": pace}
    path.write_text(json.dumps(document))
    return path


def requests_a_minute(api):
    """What the API server is asked in a minute in which nothing changes: counted in this process, round by round."""
    counted = []
    connection = api._connection
    request = connection.request
    connection.request = lambda *words, **more: (counted.append(words[0]), request(*words, **more))[1]
    try:
        dry = Follower(api, NAMESPACE, NAME, None, lambda _: None)
        run_round(dry, time.time())
        counted.clear()
        run_round(dry, time.time())
        return (len(counted) + 2) * 60 / PERIOD_S  # and two for the lease, which a dry run does not take
    finally:
        connection.request = request


class Controller:
    """The process, which can be killed."""

    def __init__(self, control_plane):
        user = f"system:serviceaccount:{NAMESPACE}:{controller_name(NAME)}"
        address = control_plane.address.server
        self.kubeconfig = control_plane.authority.issue_kubeconfig("tidemill-controller", address, user)
        self.log = (control_plane.folder / "tidemill-controller.log").open("w")
        self.process = self._start()

    def kill(self):
        """SIGKILL, and another one at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = self._start()

    def end(self):
        """SIGTERM, and its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=30)

    def _start(self):
        command = [str(Path(sys.executable).with_name("tidemill")), "controller", f"{NAMESPACE}/{NAME}"]
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        return subprocess.Popen([*command, "--context", "test"], env=environment, stdout=self.log, stderr=self.log)


@contextmanager
def following(control_plane):
    """A controller that runs."""
    controller = Controller(control_plane)
    try:
        yield controller
    finally:
        print(f"controller ended with {controller.end()}; its log is {controller.log.name}")


def play(control_plane, api, plan, nodes, arguments):
    """Look on for so many days, while the controller is killed and nodes fail."""
    clock = read_clock(find_deployment(api, NAMESPACE, NAME))
    draw, seen, core = random.Random(arguments.seed), Seen(), client.CoreV1Api(control_plane.api)
    length = arguments.days * DAY_S / arguments.pace
    begin = time.time()
    kills = sorted(begin + draw.uniform(0.02, 0.98) * length for _ in range(arguments.kills))
    failures = sorted(begin + draw.uniform(0.05, 0.9) * length for _ in range(arguments.failures))
    lost = {}  # unit -> when its node was lost, and which one
    repaired = []  # when a node is back, and which one
    whole = set()  # nodes that are back
    with following(control_plane) as controller:
        while (now := time.time()) < begin + length:
            if kills and now >= kills[0]:
                kills.pop(0)
                controller.kill()
                seen.num_kills += 1
            live = look_at(api)
            if failures and now >= failures[0] and not lost:
                failures.pop(0)
                unit, node = any_node(draw, plan, live)
                core.delete_node(node)
                lost[unit] = (now, node)
                whole.discard(node)
                repaired.append((now + REPAIRED_S / arguments.pace, node))
                print(f"{told(clock, plan, now)}  node {node} of {unit} is gone", flush=True)
            for unit in [each for each, (_, node) in lost.items() if live.is_back(each, node, whole)]:
                since, node = lost.pop(unit)
                seen.recoveries.append(now - since)
                where = "its own nodes" if node in live.nodes[unit] else "a spare"
                print(f"{told(clock, plan, now)}  {unit} is back on {where} after {now - since:.0f} s", flush=True)
            while repaired and now >= repaired[0][0]:
                _, node = repaired.pop(0)
                core.create_node(next(each for each in nodes if each.name == node).manifest)
                whole.add(node)
            judge(seen, plan, nodes, clock, live, now, lost)
            time.sleep(max(0.0, LOOK_S - (time.time() - now)))
    return seen


@dataclass(frozen=True)
class Live:
    """Units as the cluster has them, and the nodes that have their pods."""

    units: dict[str, dict]
    nodes: dict[str, set[str]]

    def ready(self, unit):
        """Whether it serves."""
        return self.units[unit]["spec"].get("replicas", 1) == 1 and missing(self.units[unit]) is None

    def is_back(self, unit, node, whole):
        """Whether it serves again: without the node that it has lost, or on it once that is among the `whole` ones.

        Kubernetes hears of the loss within a minute. Where other units have all spares, the node is waited for.
        """
        nodes = self.nodes.get(unit, {None})
        return self.ready(unit) and None not in nodes and (node not in nodes or node in whole)


def look_at(api):
    """One look."""
    api_version, kind = UNIT_OBJECTS["leaderworkerset"]
    units = {each["metadata"]["name"]: each for each in api.list_all(api_version, kind, NAMESPACE)}
    nodes = {}
    for pod in api.list_all("v1", "Pod", NAMESPACE, labelSelector=f"{PLAN_LABEL}={NAME},{UNIT_LABEL}"):
        nodes.setdefault(pod["metadata"]["labels"][UNIT_LABEL], set()).add(pod["spec"].get("nodeName"))
    return Live(units, nodes)


def any_node(draw, plan, live):
    """A node of a unit that serves on its own nodes."""
    own = {unit.name: set(unit.nodes) for unit in plan.units}
    unit = draw.choice([name for name, nodes in live.nodes.items() if live.ready(name) and nodes == own[name]])
    return unit, draw.choice(sorted(own[unit]))


def judge(seen, plan, nodes, clock, live, now, lost):
    """Hold one look against the day."""
    day, at = plan.timetable, floor(clock.day_time(now))
    seen.num_looks += 1
    phases = {unit.name: unit.phase for unit in plan.units}
    wanted = units_at(day, at)
    missed = []
    for phase in dict.fromkeys(phases.values()):
        needed = sum(phases[unit] == phase for unit in wanted)
        ready = sum(live.ready(unit) for unit in phases if phases[unit] == phase)
        by_failure = sum(phases[unit] == phase for unit in lost)
        if ready < needed and ready + by_failure >= needed:
            seen.short_by_failure_s += LOOK_S
        elif ready < needed:
            missed.append(f"{ready} of {needed} {phase} units")
    if missed:
        seen.short.append(f"{told(clock, plan, now)}  {', '.join(missed)}")
        print(seen.short[-1], flush=True)
    number = changes_between(day, at - DAY_S, at)[-1].instant
    seen.states.add(number)
    running = {unit for unit, nodes in live.nodes.items() if nodes}
    if running == on_at(day, at) and all(map(live.ready, running)):
        seen.exact.add(number)
        if running == set(wanted):
            taken = {node for nodes in live.nodes.values() for node in nodes}
            racks = {each.rack for each in nodes} - {each.rack for each in nodes if each.name in taken}
            seen.racks.setdefault(state_at(day, at).at, set()).add(len(racks))


def on_at(day, at):
    """The units that have nodes by the plan: those that serve, and those that warm up."""
    return {
        run.unit
        for run in runs_between(day, at, at + 1)
        if (run.starts is None or run.starts <= at) and (run.drains is None or at < run.drains)
    }


def told(clock, plan, now):
    """The day's time, for people."""
    return time.strftime("%d %H:%M", time.gmtime(clock.day_time(now) + 8 * 3600))  # Asia/Shanghai has one offset


def report(plan, seen, requests, arguments):
    """Print what was seen; the exit status."""
    print(f"{seen.num_looks} looks; ready again after a lost node: {[round(each) for each in seen.recoveries]} s")
    print(f"racks without pods, by state: { {at: sorted(each) for at, each in seen.racks.items()} }")
    planned = {step.at: step.free_racks for step in plan.timetable.steps}
    print(f"by the plan: {planned}")
    goals = Goals()
    goals.check("API requests a minute", requests, "<=", 120)
    goals.check("looks at which capacity was under demand, but for a lost node", len(seen.short), "==", 0)
    for instant in sorted(seen.states - seen.exact):
        print(f"never exactly as planned: the state from {datetime.fromtimestamp(instant, UTC):%d %H:%M} UTC")
    goals.check("states of the days that were there exactly as planned", len(seen.exact), "==", len(seen.states))
    goals.check("units that came back after a lost node", len(seen.recoveries), "==", arguments.failures)
    goals.check("kills", seen.num_kills, "==", arguments.kills)
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())

"""Units take new templates in turn, whoever applies them: real LeaderWorkerSets on fake nodes.

The tests are in the order of a deployment's life. The controller acts by the rights of its own account. What cannot
start here is a template that no node admits: KWOK calls every pod ready that is bound to a node, whatever its image.
"""

import math
import time
from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import pytest
import yaml
from kubernetes import client

from planner.diff.diff import compare_plans
from planner.manifests.render import KUSTOMIZATION, render_files
from stacks.controller.loop import run_round
from tests.cluster.controller.day import (
    ACCOUNT,
    LWS,
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
from tests.cluster.fake_nodes import FAKE_NODE_PRODUCTS, FakeNode, create_nodes, running_control_plane_for_fake_nodes
from tests.cluster.objects import Objects
from tests.cluster.published import bound_nodes
from tests.stacks.controller.day_spec import day_plan

ALL_DAY = {"windows": [{"at": "00:00", "prefill_units": 2, "decode_units": 2}]}
ONE_LESS = {"windows": [{"at": "00:00", "prefill_units": 2, "decode_units": 1}]}
SECOND_PODS = {f"{unit}-0{worker}" for unit in SECOND for worker in ("", "-1")}
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}  # ends pods at once
DEADLINE_S = 60
LOOK_S = 0.3


@pytest.fixture(scope="module")
def control_plane(toolchain, tmp_path_factory):
    """Eight fake nodes."""
    toolchain(*FAKE_NODE_PRODUCTS)
    with running_control_plane_for_fake_nodes(tmp_path_factory.mktemp("turns")) as started:
        create_nodes(started, [FakeNode(f"node-{index}", "rack", "leaf") for index in range(8)])
        serve_definitions(started, [OUR_DEFINITION])
        yield started


@pytest.fixture(scope="module")
def apply(control_plane, tmp_path_factory):
    """Apply the demo's day, all units of which are on, with these fields of `kubernetes`."""
    objects = Objects(control_plane.api, str(tmp_path_factory.mktemp("discovery") / "cache.json"))

    def apply(schedule=ALL_DAY, nodes=MappingProxyType({}), **kubernetes):
        told = {"namespace": NAMESPACE, "drain": "5s", "ready_timeout": "10s", "controller": {}} | kubernetes
        folder, sizes = tmp_path_factory.mktemp("day"), {"cluster": {"nodes": 8}, "phases": {"ep_size": 2}}
        plan = day_plan(folder, schedule=schedule, **sizes, **told)
        plan = plan.with_sections(
            units=tuple(replace(unit, nodes=nodes.get(unit.name, unit.nodes)) for unit in plan.units)
        )
        for text in (text for name, text in render_files(plan).items() if name != KUSTOMIZATION):
            objects.apply(yaml.safe_load(text))
        return plan

    return apply


@pytest.fixture(scope="module")
def cluster(control_plane, apply):
    """The day, deployed and followed."""
    return Watched(control_plane, apply())


class Watched:
    """A deployment, its controller, and the fewest units that have served."""

    def __init__(self, control_plane, plan):
        self.plan = plan
        self.custom = client.CustomObjectsApi(control_plane.api)
        self.core = client.CoreV1Api(control_plane.api)
        self.said = []
        self.follower = following_as("one", api_of_account(control_plane, ACCOUNT), self.said)

    def play(self, is_over):
        """Let the controller act until it is over. Return the fewest units of a phase that were ready at a look."""
        deadline, fewest = time.monotonic() + DEADLINE_S, 4
        while True:
            run_round(self.follower, time.time())
            ready = self.ready()
            fewest = min(fewest, *(ready[phase] for phase in ("prefill", "decode")))
            if is_over():
                return fewest
            assert time.monotonic() < deadline, condition(self.custom, "Current")
            time.sleep(LOOK_S)

    def change_to(self, plan):
        """What the diff says of the change to a plan, which was just applied."""
        found, self.plan = compare_plans(self.plan, plan), plan
        return promised_by(found.as_json())

    def recorded(self):
        """What the controller has recorded of the last change."""
        run_round(self.follower, time.time())  # the last look may have been before the last unit was ready
        return last_change(self.custom)

    def ready(self):
        """Phase -> its ready units."""
        return Counter(each["metadata"]["labels"]["tidemill.dev/phase"] for each in self.units() if is_ready(each))

    def units(self):
        """The units' objects."""
        return self.custom.list_namespaced_custom_object(*LWS)["items"]

    def pods(self):
        """Pod -> its uid, and a variable in which templates differ."""
        found = self.core.list_namespaced_pod(NAMESPACE, label_selector="tidemill.dev/unit").items
        return {each.metadata.name: (each.metadata.uid, revision(each.spec.containers[0].env)) for each in found}

    def nodes(self):
        """Unit -> the nodes of its pods."""
        return bound_nodes(self.core.list_namespaced_pod(NAMESPACE, label_selector="tidemill.dev/unit").items)

    def taint(self, node, *taints):
        """Give a node these taints, and no other."""
        self.core.patch_node(node, {"spec": {"taints": list(taints) or None}})

    def is_settled(self):
        """Whether every unit is ready with its newest template."""
        return condition(self.custom, "Current")[0] == "True" and self.ready().total() == 4


def is_ready(unit):
    return unit["spec"]["replicas"] == 1 and unit.get("status", {}).get("readyReplicas") == 1


def revision(env):
    return next((each.value for each in env if each.name == "REVISION"), "")


def test_a_new_template_takes_one_unit_of_a_phase_at_a_time(cluster, apply):
    """Nothing restarts when it is applied; then each unit is drained and started, and the other one serves."""
    cluster.play(cluster.is_settled)
    before = cluster.pods()
    said = cluster.change_to(apply(env={"REVISION": "2"}))
    time.sleep(2)  # LeaderWorkerSet would have begun by now
    assert cluster.pods() == before
    fewest = cluster.play(lambda: cluster.is_settled() and {each for _, each in cluster.pods().values()} == {"2"})

    assert fewest == 1
    drained = [each.partition(":")[0] for each in cluster.said if "its turn has come" in each]
    assert sorted(drained) == sorted(f"drain {unit}" for unit in UNITS)
    assert [each.rpartition("-")[2] for each in drained] == ["0", "0", "1", "1"]
    assert cluster.recorded() == said
    order = [each["name"] for each in deployment(cluster.custom)["status"]["changes"][-1]["units"]]
    assert [each.partition(" ")[2] for each in drained] == order


def test_a_template_that_does_not_start_stops_after_one_unit_and_the_former_one_heals_it(cluster, apply):
    """The others keep their pods all the while, and the status says what is wrong."""
    before = cluster.pods()
    apply(env={"REVISION": "3"}, node_selector={"pool": "nowhere"})
    cluster.play(lambda: condition(cluster.custom, "Current")[1] == "Stopped")
    stopped = condition(cluster.custom, "Current")
    apply(env={"REVISION": "2"})
    fewest = cluster.play(cluster.is_settled)
    cluster.recorded()
    after, changes = cluster.pods(), deployment(cluster.custom)["status"]["changes"][-2:]

    assert "has not become ready in time with its newest template" in stopped[2]
    assert fewest == 1
    assert {each for _, each in after.values()} == {"2"}
    assert {pod for pod in before if before[pod] == after.get(pod)} == SECOND_PODS
    assert [each["outcome"] for each in changes] == ["Replaced", "CarriedOut"]
    assert [{unit["name"] for unit in each["units"]} for each in changes] == [{UNITS[0], UNITS[2]}] * 2


def test_a_node_that_is_lost_in_a_turn_holds_up_the_other_turns(cluster, apply):
    """The unit cannot start again. The second units serve on with their pods, and have their turns when it is back."""
    before, lost = cluster.pods(), min(cluster.nodes()[UNITS[0]])
    said = cluster.change_to(apply(env={"REVISION": "4"}))
    cluster.play(lambda: before[f"{UNITS[0]}-0"] != cluster.pods().get(f"{UNITS[0]}-0"))
    cluster.taint(lost, OUT_OF_SERVICE)
    cluster.play(lambda: cluster.ready() == {"prefill": 1, "decode": 2})
    meanwhile, waits_for = cluster.pods(), condition(cluster.custom, "Current")[2]
    cluster.taint(lost)
    fewest = cluster.play(lambda: cluster.is_settled() and {each for _, each in cluster.pods().values()} == {"4"})

    assert UNITS[0] in waits_for
    assert {pod for pod in before if before[pod] == meanwhile.get(pod)} == SECOND_PODS
    assert fewest == 1
    assert cluster.recorded() == said


def test_units_that_get_each_others_nodes_go_together(cluster, apply):
    """A prefill and a decode unit swap their nodes; the other two stay, and serve meanwhile."""
    first, second, third, fourth = UNITS
    before, nodes = cluster.pods(), cluster.nodes()
    swapped = {first: nodes[third], third: nodes[first]}
    plan = apply(nodes={unit: tuple(sorted(each)) for unit, each in swapped.items()}, env={"REVISION": "4"})
    said = cluster.change_to(plan)
    fewest = cluster.play(lambda: cluster.is_settled() and cluster.nodes() == nodes | swapped)
    after = cluster.pods()

    assert fewest == 1
    assert {pod for pod in before if before[pod] == after[pod]} == {
        f"{unit}-0{worker}" for unit in (second, fourth) for worker in ("", "-1")
    }
    assert cluster.recorded() == said


def test_a_unit_that_leaves_the_plan_is_deleted_with_its_objects(cluster, apply):
    """No tool prunes it. LeaderWorkerSet's copies of former templates go as well."""
    leaving = UNITS[-1]
    said = cluster.change_to(apply(ONE_LESS, env={"REVISION": "4"}))
    cluster.play(
        lambda: (
            deployment(cluster.custom)["status"]["unitNames"] == UNITS[:-1]
            and condition(cluster.custom, "Current")[0] == "True"
        )
    )
    cluster.play(lambda: _num_revisions(cluster) == dict.fromkeys(UNITS[:-1], 1))

    assert leaving not in [each["metadata"]["name"] for each in cluster.units()]
    assert leaving not in {each.metadata.name for each in cluster.core.list_namespaced_service(NAMESPACE).items}
    assert cluster.recorded() == said


def is_of_unit(revision):
    return revision.metadata.owner_references[0].kind == "LeaderWorkerSet"


def _num_revisions(cluster):
    """Sweep, and count the revisions of each unit; one stays while a pod with its template still ends."""
    run_round(cluster.follower, time.time(), math.inf)
    revisions = client.AppsV1Api(cluster.core.api_client).list_namespaced_controller_revision(
        NAMESPACE, label_selector="leaderworkerset.sigs.k8s.io/name"
    )
    return Counter(each.metadata.owner_references[0].name for each in revisions.items if is_of_unit(each))

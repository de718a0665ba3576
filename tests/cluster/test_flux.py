"""A rendered folder, applied by the real Flux from a Git server: one deployment, tested in the order of its life.

API server, LeaderWorkerSet's controller, Flux and our controller with its own account's rights are real. KWOK plays the
pods, which serve nothing; a template that cannot start is one that no node admits.
"""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from kubernetes import client

from planner.facts.names import UNIT_LABEL
from stacks.cli import main
from stacks.controller.health import Health
from stacks.controller.loop import follow
from tests.cluster.controller.day import (
    ACCOUNT,
    DEPLOYMENTS,
    LWS,
    NAME,
    NAMESPACE,
    SECOND,
    UNITS,
    api_of_account,
    condition,
    deployment,
    following_as,
    last_change,
    order,
    promised_by,
)
from tests.cluster.fake_nodes import FAKE_NODE_PRODUCTS, FakeNode, create_nodes, running_control_plane_for_fake_nodes
from tests.cluster.flux import FLUX_PRODUCTS, running_flux, serving_repository
from tests.stacks.controller.day_spec import write_day

NUM_NODES = 6
TIDEMILL = Path(sys.executable).with_name("tidemill")
READY_TIMEOUT = "10s"
THIRD = f"{NAME}-prefill-2"


@pytest.fixture(scope="module")
def plan(toolchain, tmp_path_factory):
    """The demo's day in a repository, which Flux follows; the controller's pod is one of KWOK's, and does nothing."""
    toolchain(*FAKE_NODE_PRODUCTS, *FLUX_PRODUCTS)
    nodes, git = tmp_path_factory.mktemp("nodes"), tmp_path_factory.mktemp("git")
    with serving_repository(git) as repository, running_control_plane_for_fake_nodes(nodes) as control_plane:
        create_nodes(control_plane, [FakeNode(f"node-{index}", "rack", "leaf") for index in range(NUM_NODES)])
        write_spec(repository)
        init = [TIDEMILL, "gitops", "init", "spec.yaml", "deploy", "--flux", "--repository", repository.url]
        subprocess.run(init, cwd=repository.checkout, check=True)
        render(repository)
        with running_flux(control_plane, repository, f"{NAME}-deploy") as flux:
            flux.follow(repository.checkout / "clusters" / "deploy" / "flux.yaml")
            yield flux


def write_spec(repository, prefill_units=2, loads=None, **kubernetes):
    """Write the spec of a day that has all units on, with these fields of `kubernetes`. Return its path.

    Each unit has two ranks, so that other loads give another map.
    """
    day = {"windows": [{"at": "00:00", "prefill_units": prefill_units, "decode_units": 2}]}
    told = {"namespace": NAMESPACE, "controller": {}, "drain": "5s", "ready_timeout": READY_TIMEOUT} | kubernetes
    sizes = {"cluster": {"nodes": NUM_NODES, "gpus_per_node": 2}, "phases": {"ep_size": 2, "redundant_experts": 2}}
    return write_day(repository.checkout, schedule=day, loads=loads, **sizes, **told)


def render(repository, **fields):
    """Write such a spec and its folder, and commit both. Return what the diff says, if something was there before."""
    spec = write_spec(repository, **fields)
    with redirect_stdout(StringIO()) as said:
        assert main(["render", str(spec), "-o", str(repository.checkout / "deploy"), "--format", "json"]) == 0
    repository.commit("render")
    diff = json.loads(said.getvalue()).get("diff")
    return diff and promised_by(diff)


@pytest.fixture(scope="module")
def custom(plan):
    """The administrator's way to objects of other groups."""
    return client.CustomObjectsApi(plan.control_plane.api)


def test_a_folder_is_deployed_when_the_controller_says_so(plan, custom):
    """The kind comes first. All pods run by then, and still Flux waits for the first look of the controller."""
    plan.wait(lambda: len(pods(plan)) == len(UNITS), "every unit has its pod")
    plan.wait(lambda: not any_starting(custom), "every unit is ready")
    assert deployment(custom)["status"] == {"observedGeneration": -1}
    assert plan.condition()[0] != "True"

    with running_controller(plan):
        plan.wait_until_ready()

    assert condition(custom, "Ready") == (
        "True",
        "CarriedOut",
        "every unit that is wanted is ready, with its newest template",
    )


def test_one_more_unit_restarts_no_pod(plan, custom):
    """Three prefill units instead of two: those that run go on."""
    before = pods(plan)
    said = render(plan.repository, prefill_units=3)

    with running_controller(plan):
        plan.reconcile()

    assert pods(plan).keys() - before.keys() == {f"{THIRD}-0"}
    assert before.items() <= pods(plan).items()
    assert last_change(custom) == said


def test_a_persons_orders_stay(plan, custom):
    """Through three looks of Flux, whoever wrote them; the first puts back what else was edited in the same object."""
    order(custom, warmUpSeconds=1, hold={"until": "2100-01-01T00:00:00Z"})  # as kubectl patch does
    force = [TIDEMILL, "force", f"{NAMESPACE}/{NAME}", "--state", "00:00", "--until", "1h"]
    subprocess.run(force, env=os.environ | {"KUBECONFIG": str(plan.control_plane.kubeconfig)}, check=True)
    given = {name: deployment(custom)["spec"][name] for name in ("hold", "force")}
    with running_controller(plan):
        for _ in range(3):
            plan.reconcile()

    spec = deployment(custom)["spec"]
    assert {name: spec[name] for name in given} == given
    assert spec["warmUpSeconds"] == 1800
    assert condition(custom, "Following")[:2] == ("False", "Held")
    order(custom, hold=None, force=None)


def test_what_somebody_edited_is_put_back(plan):
    """In an object of which Flux owns every field, one that was added goes as well."""
    core = client.CoreV1Api(plan.control_plane.api)
    edit = {
        "metadata": {"annotations": {"mine": "x"}},
        "spec": {"ports": [{"name": "http", "port": 8000, "targetPort": 1}]},
    }
    before = core.read_namespaced_service(f"{NAME}-gateway", NAMESPACE)
    core.patch_namespaced_service(f"{NAME}-gateway", NAMESPACE, edit, field_manager="kubectl-edit")

    with running_controller(plan):
        plan.reconcile()

    after = core.read_namespaced_service(f"{NAME}-gateway", NAMESPACE)
    assert (after.spec.ports, after.metadata.annotations) == (before.spec.ports, before.metadata.annotations)


def test_a_unit_that_left_git_serves_until_the_controller_deletes_it(plan, custom):
    """Flux prunes neither it nor what its pods need. The controller deletes all of it but what old pods may need."""
    before, kept = pods(plan), objects_of(plan, THIRD)
    said = render(plan.repository)
    plan.fetch()
    plan.wait(lambda: THIRD not in plan.inventory(), "Flux has looked for what left Git")
    left = pods(plan), objects_of(plan, THIRD)
    with running_controller(plan):
        plan.reconcile()

    assert left == (before, kept)
    assert not objects_of(plan, THIRD)
    assert pods(plan).keys() == {f"{unit}-0" for unit in UNITS}
    assert last_change(custom) == said


def test_maps_for_new_loads_reach_units_in_turns(plan, custom):
    """Each unit starts again with a launch file that has its new map."""
    before, maps = pods(plan), maps_of(plan)
    said = render(plan.repository, loads={"alpha": 1.2, "seed": 1})
    with running_controller(plan):
        plan.reconcile()

    after = maps_of(plan)
    assert not before.items() & pods(plan).items()
    assert maps.keys() == after.keys() == {*UNITS}
    assert all(maps[unit] != after[unit] for unit in UNITS)
    assert last_change(custom) == said


def test_a_new_template_is_taken_in_turns(plan, custom):
    """Flux is done when the last unit has had its turn, and until then all others serve."""
    before = pods(plan)
    said = render(plan.repository, env={"REVISION": "2"})
    with running_controller(plan):
        plan.reconcile()

    after = pods(plan)
    assert [unit for unit in UNITS if after[f"{unit}-0"] == before[f"{unit}-0"]] == []
    assert condition(custom, "Current")[0] == "True"
    assert last_change(custom) == said


def test_a_template_that_does_not_start_fails_at_once_and_a_revert_heals_it(plan, custom):
    """Flux does not wait for as long as it may, so it sees the revert. The other units go on all the while.

    Right after the revert it may say once more that the change has failed, since the controller has not looked yet.
    """
    before = pods(plan)
    render(plan.repository, env={"REVISION": "3"}, node_selector={"pool": "nowhere"})
    with running_controller(plan):
        plan.fetch()
        plan.wait(lambda: plan.condition()[1] == "HealthCheckFailed", "Flux says that the change has failed")
        said, left = plan.condition()[2], pods(plan)
        plan.repository.revert()
        plan.fetch()
        plan.wait(lambda: condition(custom, "Ready")[0] == "True", "the failed units have taken their former template")
        plan.reconcile()

    assert f"TidemillDeployment/{NAMESPACE}/{NAME} status: 'Failed'" in said
    after = pods(plan)
    assert before.keys() - left.keys() == {f"{NAME}-prefill-0-0", f"{NAME}-decode-0-0"}
    assert {unit for unit in UNITS if after[f"{unit}-0"] == before[f"{unit}-0"]} == SECOND


def test_a_controller_that_comes_with_new_templates_gives_the_turns(plan, custom):
    """One commit brings both, to units that no controller has followed, and it begins while Flux still applies.

    A template that comes after it has begun may be a change of its own.
    """
    render(plan.repository, env={"REVISION": "2"}, controller=None)
    plan.reconcile()
    plan.wait(lambda: not deployments(custom), "nothing is left that a controller follows")
    before = pods(plan)
    render(plan.repository, env={"REVISION": "4"})
    plan.fetch()
    plan.wait(lambda: deployments(custom), "the day has come")
    with running_controller(plan):
        plan.reconcile()

    after = pods(plan)
    (found,) = deployments(custom)
    changes = found["status"]["changes"]
    assert before.keys() == after.keys() == {f"{unit}-0" for unit in UNITS}
    assert not before.items() & after.items()
    assert sorted(each["name"] for change in changes for each in change["units"]) == sorted(UNITS)
    assert {(change["outcome"], *change["left"]) for change in changes} == {("CarriedOut",)}
    assert min(share["units"] for change in changes for share in change["least"].values()) == 1


def deployments(custom):
    return custom.list_namespaced_custom_object(*DEPLOYMENTS)["items"]


@contextmanager
def running_controller(plan):
    """Follow the day as the controller's pod would, with its rights."""
    ended, follower = threading.Event(), following_as("one", api_of_account(plan.control_plane, ACCOUNT))
    thread = threading.Thread(target=follow, args=(follower, ended.is_set, lambda _: ended.wait(0.2), Health()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pods(plan):
    """Name -> uid of the units' pods that run."""
    found = client.CoreV1Api(plan.control_plane.api).list_namespaced_pod(NAMESPACE, label_selector=UNIT_LABEL).items
    return {each.metadata.name: each.metadata.uid for each in found if each.status.phase == "Running"}


def maps_of(plan):
    """Unit -> the expert of each slot, by the launch file that its pod has."""
    core = client.CoreV1Api(plan.control_plane.api)
    found = core.list_namespaced_pod(NAMESPACE, label_selector=UNIT_LABEL).items
    return {each.metadata.labels[UNIT_LABEL]: launched(core, each)["expert_map"] for each in found}


def launched(core, pod):
    """The launch file of a pod."""
    (volume,) = (each for each in pod.spec.volumes if each.name == "launch")
    file = core.read_namespaced_config_map(volume.projected.sources[0].config_map.name, NAMESPACE)
    (text,) = file.data.values()
    return json.loads(text)


def objects_of(plan, unit):
    """Kind -> uid of a unit's objects, but for its launch file."""
    api, of_unit = plan.control_plane.api, {"label_selector": f"{UNIT_LABEL}={unit}"}
    services = client.CoreV1Api(api).list_namespaced_service(NAMESPACE, **of_unit).items
    policies = client.NetworkingV1Api(api).list_namespaced_network_policy(NAMESPACE, **of_unit).items
    sets = client.CustomObjectsApi(api).list_namespaced_custom_object(*LWS, **of_unit)["items"]
    found = {each["metadata"]["name"]: each["metadata"]["uid"] for each in sets}
    return found | {type(each).__name__: each.metadata.uid for each in (*services, *policies)}


def any_starting(custom):
    return any(
        not each.get("status", {}).get("readyReplicas") for each in custom.list_namespaced_custom_object(*LWS)["items"]
    )

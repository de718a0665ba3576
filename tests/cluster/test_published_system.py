"""The published system's layout by `pulumi up` on 278 fake nodes of 8 GPUs: 38 units, each pod on its planned node.

One deployment, and the tests in the order of its life. Nothing differs from production but the kubelets: KWOK says of
every pod that it runs. How long it takes is measured by `python -m tests.benchmarks.up_on_fake_nodes`.
"""

import pytest
from kubernetes import client

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.doctor.checks import findings
from stacks.doctor.needs import read_needs
from stacks.doctor.reading import read_facts
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from tests.cluster.deployed import new_stack
from tests.cluster.fake_nodes import GPU, NUM_NODES, RDMA
from tests.cluster.products import PULUMI
from tests.cluster.published import NAMESPACE, bound_nodes, write_published_spec

NUM_UNITS = 38


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """The file that is deployed."""
    return write_published_spec(tmp_path_factory.mktemp("spec"))


@pytest.fixture(scope="module")
def plan(spec):
    """What of its plan is carried out."""
    return compile_plan(check_spec(spec))


@pytest.fixture(scope="module")
def stack(fake_nodes, toolchain, spec, tmp_path_factory):
    """A stack of our program, not up yet."""
    (executable,) = toolchain(PULUMI)
    return new_stack(executable, tmp_path_factory.mktemp("stack"), fake_nodes.kubeconfig, spec)


@pytest.fixture(scope="module")
def up(stack):
    """The same, up."""
    run = stack.up()
    assert run.status == 0, run.output
    return stack


def doctor(control_plane, plan):
    """What the command finds: (check, object) of each; planned once for all tests."""
    needs = read_needs(plan)
    return [
        (each.check, each.object) for each in findings(needs, read_facts(Api(Connection(control_plane.api)), needs))
    ]


def test_doctor_finds_nothing_where_all_is_well(fake_nodes, plan):
    """It is asked about 278 nodes, before the first `up`."""
    assert doctor(fake_nodes, plan) == []


def test_doctor_finds_the_node_that_lacks_something(fake_nodes, plan):
    """A GPU that is broken, devices that nobody offers, a taint, a cordon: each is found on its node, and no other."""
    core = client.CoreV1Api(fake_nodes.api)
    core.patch_node_status("gpu-003", {"status": {"allocatable": {GPU: "7"}}})
    core.patch_node_status("gpu-100", {"status": {"allocatable": {RDMA: None}, "capacity": {RDMA: None}}})
    core.patch_node("gpu-200", {"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}})
    core.patch_node("gpu-277", {"spec": {"unschedulable": True}})
    try:
        found = doctor(fake_nodes, plan)
    finally:
        core.patch_node_status("gpu-003", {"status": {"allocatable": {GPU: "8"}}})
        core.patch_node_status("gpu-100", {"status": {"allocatable": {RDMA: "8"}, "capacity": {RDMA: "8"}}})
        core.patch_node("gpu-200", {"spec": {"taints": None}})
        core.patch_node("gpu-277", {"spec": {"unschedulable": None}})

    assert sorted(found) == [
        ("device", "Node gpu-003"),
        ("device", "Node gpu-100"),
        ("node", "Node gpu-277"),
        ("taint", "Node gpu-200"),
    ]


def test_every_pod_is_on_its_planned_node(up, fake_nodes, plan):
    """38 units, 278 pods of 8 GPUs and their RDMA devices, and no node of another unit."""
    pods = client.CoreV1Api(fake_nodes.api).list_namespaced_pod(NAMESPACE, label_selector="tidemill.dev/unit").items
    nodes = bound_nodes(pods)

    assert nodes == {unit.name: set(unit.nodes) for unit in plan.units}
    assert (len(nodes), len(pods), len(set().union(*nodes.values()))) == (NUM_UNITS, NUM_NODES, NUM_NODES)
    assert {pod.spec.containers[0].resources.requests[GPU] for pod in pods} == {"8"}
    assert {pod.spec.containers[0].resources.requests[RDMA] for pod in pods} == {"8"}
    assert all(is_ready(pod) for pod in pods)


def is_ready(pod):
    """By its condition: KWOK's word."""
    return any((each.type, each.status) == ("Ready", "True") for each in pod.status.conditions)


def test_a_preview_of_what_is_there_is_clean(up):
    """Nothing that the server filled in or wrote differently looks like a change in any of 38 units."""
    preview = up.preview("--expect-no-changes")

    assert (preview.steps, preview.changes, preview.status) == ({}, {}, 0)


def test_a_hand_edit_of_one_field_is_found(up, fake_nodes, plan):
    """Among some 120 objects, by its path; a plain preview looks."""
    unit = plan.units[-1].name
    edit = {"spec": {"publishNotReadyAddresses": False}}
    client.CoreV1Api(fake_nodes.api).patch_namespaced_service(unit, NAMESPACE, edit, field_manager="kubectl-edit")

    preview = up.preview()

    assert preview.changes == {unit: {"Service.spec.publishNotReadyAddresses": "add"}}  # false is not stored at all


def test_doctor_leaves_alone_what_is_the_plans_own(up, fake_nodes, plan):
    """Pods of an earlier `up` hold every GPU, and stand in nobody's way."""
    assert doctor(fake_nodes, plan) == []

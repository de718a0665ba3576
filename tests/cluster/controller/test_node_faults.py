"""Units leave nodes that are cordoned or faulty, and pods of nodes that do not answer are forgotten."""

import time
from contextlib import suppress

import pytest
from kubernetes import client

from stacks.controller.loop import run_round
from tests.cluster.controller.day import NAME, NAMESPACE, NODES, SPARE, TAINT, UNITS, at, condition, on

CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@pytest.fixture
def pods(api_server, objects):
    """A pod for each unit, on its node."""
    core = client.CoreV1Api(api_server.api)
    for unit, node in zip(UNITS, NODES, strict=True):
        labels = {"tidemill.dev/plan": NAME, "tidemill.dev/unit": unit}
        containers = [{"name": "runtime", "image": "x"}]
        spec = {"serviceAccountName": "demo-day-runtime", "nodeName": node, "containers": containers}
        core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": f"{unit}-0", "labels": labels}, "spec": spec})
    yield core
    for unit in UNITS:
        with suppress(client.ApiException):  # one is gone by then
            core.delete_namespaced_pod(f"{unit}-0", NAMESPACE, grace_period_seconds=0)


def healthy(custom):
    return condition(custom, "Healthy")[:2]


def test_a_unit_leaves_a_node_that_is_cordoned(custom, following, pods):
    """It is drained, and the next round starts it again; the event says why."""
    run_round(following, at(10))
    assert healthy(custom) == ("True", "NoFaults")
    pods.patch_node("node-3", {"spec": {"unschedulable": True, "taints": [TAINT, CORDON]}})
    try:
        run_round(following, at(10, 1) + 10)
        assert on(custom) == set(UNITS), "nobody looks at nodes in every round"
        run_round(following, at(10, 2))
        assert on(custom) == set(UNITS) - {"demo-day-decode-1"}
        run_round(following, at(10, 2) + 5)
        assert on(custom) == set(UNITS)
    finally:
        pods.patch_node("node-3", {"spec": {"unschedulable": None, "taints": [TAINT]}})
    said = [each.message for each in pods.list_namespaced_event(NAMESPACE).items if each.reason == "Drain"]
    assert said == ["demo-day-decode-1: node-3, which is cordoned; it moves to a spare"]


def test_a_node_that_reports_a_fault_gets_a_taint_and_its_unit_leaves(custom, following, pods):
    """First the taint, which the scheduler reads; with the condition it goes again."""
    run_round(following, at(10))
    report_condition(pods, "node-1", "True")
    run_round(following, at(10, 1))
    assert taints(pods, "node-1") == ["team", "tidemill.dev/faulty"]
    run_round(following, at(10, 2))
    assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}

    report_condition(pods, "node-1", "False")
    run_round(following, at(10, 3))
    assert taints(pods, "node-1") == ["team"]
    said = {each.message for each in pods.list_namespaced_event(NAMESPACE).items if each.reason in ("Faulty", "Mended")}
    assert said == {"node-1 reports a fault", "node-1 reports no fault any more"}


def test_a_pod_of_a_node_that_does_not_answer_is_forgotten(custom, following, pods):
    """Once Kubernetes has told it to end and its time is over; before, it may still answer."""
    name, lost = "demo-day-decode-1-0", {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    pods.patch_node("node-3", {"spec": {"taints": [TAINT, lost]}})
    try:
        pods.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=60)
        run_round(following, now := time.time() // 30 * 30)
        assert pods.read_namespaced_pod(name, NAMESPACE).metadata.deletion_timestamp
        run_round(following, now + 120)
        with pytest.raises(client.ApiException) as gone:
            pods.read_namespaced_pod(name, NAMESPACE)
    finally:
        pods.patch_node("node-3", {"spec": {"taints": [TAINT]}})
    assert gone.value.status == 404
    said = [each.message for each in pods.list_namespaced_event(NAMESPACE).items if each.reason == "Forget"]
    assert said == [f"{name}: node-3 does not answer, and the pod's grace period is over"]


def test_without_a_spare_the_status_asks_for_a_new_plan(custom, following, pods):
    """Once, by an event, and for as long as it is so, by a condition."""
    for node in (SPARE, "node-3"):
        pods.patch_node(node, {"spec": {"taints": [TAINT, CORDON]}})
    try:
        for minute in range(3):
            run_round(following, at(10, minute))
            run_round(following, at(10, minute) + 10)
    finally:
        for node in (SPARE, "node-3"):
            pods.patch_node(node, {"spec": {"taints": [TAINT]}})
    reason = "demo-day-decode-1 is on node-3, which is cordoned, and no spare is left: plan again without it"
    assert on(custom) == set(UNITS)
    assert condition(custom, "Healthy") == ("False", "Stuck", reason)
    events = [each for each in pods.list_namespaced_event(NAMESPACE).items if each.reason == "Stuck"]
    assert [(each.type, each.message) for each in events] == [("Warning", reason)]


def report_condition(core, node, status):
    found = {"type": "GPUMissing", "status": status, "reason": "GPUMissing", "message": ""}
    core.patch_node_status(node, {"status": {"conditions": [found]}})


def taints(core, node):
    return [each.key for each in core.read_node(node).spec.taints]

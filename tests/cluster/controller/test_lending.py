"""Nodes of units that are off: marked free, lent by a quota, and left in time."""

import pytest
import yaml
from kubernetes import client

from stacks.controller.loop import run_round
from tests.cluster.controller.day import NAME, NAMESPACE, NODES, SECOND, at, deployment, following_as, nodes, report
from tests.cluster.definitions import serve_definitions


def test_nodes_of_units_that_are_off_are_lent(custom, following, api_server):
    """Free when the pods are gone, tainted five minutes before the unit starts, and its own again when it serves."""
    core = client.CoreV1Api(api_server.api)
    labels = {"tidemill.dev/plan": NAME, "tidemill.dev/unit": "demo-day-decode-1"}
    pod = {"serviceAccountName": "demo-day-runtime", "containers": [{"name": "runtime", "image": "x"}]}
    core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": "ends", "labels": labels}, "spec": pod})
    none, free = (None, ["team"]), ("free", ["team"])
    try:
        run_round(following, at(12))
        run_round(following, at(12, 1))
        assert nodes(api_server) == dict(zip(NODES, [none, free, none, none], strict=True))
    finally:
        core.delete_namespaced_pod("ends", NAMESPACE, grace_period_seconds=0)

    run_round(following, at(12, 2))
    assert nodes(api_server) == dict(zip(NODES, [none, free, none, free], strict=True))
    assert deployment(custom)["status"]["freeNodes"] == 2

    run_round(following, at(17, 25))
    reclaimed = ("reclaimed", ["team", "tidemill.dev/reclaimed"])
    assert nodes(api_server) == dict(zip(NODES, [none, reclaimed, none, reclaimed], strict=True))

    run_round(following, at(17, 30))
    for unit in SECOND:
        report(custom, unit, ready=1)
    run_round(following, at(17, 59))
    assert nodes(api_server) == dict.fromkeys(NODES, none)
    said = [each.reason for each in core.list_namespaced_event(NAMESPACE).items]
    assert (said.count("Freed"), said.count("Reclaimed")) == (2, 2)


@pytest.fixture
def cluster_queue(api_server, tmp_path):
    """Kueue's kind as far as quotas go, with its lists and what it says of them, and a queue without quota."""
    resource = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "nominalQuota": QUANTITY}}
    flavor = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "resources": listed(resource)}}
    group = {"type": "object", "properties": {"coveredResources": {"type": "array", "items": TEXT}}}
    group["properties"]["flavors"] = listed(flavor)
    groups = {"type": "array", "x-kubernetes-list-type": "atomic", "items": group}
    spec = {"type": "object", "properties": {"resourceGroups": groups}}
    version = {"name": "v1beta1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    names = {"kind": "ClusterQueue", "plural": "clusterqueues", "singular": "clusterqueue"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterqueues.kueue.x-k8s.io"},
        "spec": {"group": "kueue.x-k8s.io", "scope": "Cluster", "names": names, "versions": [version]},
    }
    path = tmp_path / "clusterqueue.yaml"
    path.write_text(yaml.safe_dump(definition))
    serve_definitions(api_server, [path])
    calls = client.CustomObjectsApi(api_server.api)
    lending_events = {"name": "lent", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "0"}]}
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "batch"}}
    queue["spec"] = {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [lending_events]}]}
    calls.create_cluster_custom_object(*QUEUES, queue)
    yield lambda: calls.get_cluster_custom_object(*QUEUES, "batch")["spec"]["resourceGroups"]
    client.ApiextensionsV1Api(api_server.api).delete_custom_resource_definition(definition["metadata"]["name"])


QUEUES = ("kueue.x-k8s.io", "v1beta1", "clusterqueues")
TEXT, QUANTITY = {"type": "string"}, {"x-kubernetes-int-or-string": True}


def listed(item):
    """A list by name."""
    return {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item}


def test_kueues_quota_follows_the_nodes_that_are_free(custom, cluster_queue, account, api_server):
    """Eight GPUs for each; none once they are to be left."""
    following = following_as("one", account)
    run_round(following, at(12))
    run_round(following, at(12, 1))
    by_day = cluster_queue()
    run_round(following, at(17, 25))

    assert by_day[0]["flavors"][0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]
    assert cluster_queue()[0]["flavors"][0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": "0"}]
    said = [each.message for each in client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items]
    assert {each for each in said if each.startswith("the quota")} == {
        f"the quota of batch in lent is {number} nvidia.com/gpu" for number in (16, 0)
    }


def test_a_mark_that_somebody_took_away_comes_back(custom, following, api_server):
    """Nodes are looked at every five minutes, whatever the status says."""
    run_round(following, at(12))
    run_round(following, at(12, 1))
    gone = {"metadata": {"labels": {"tidemill.dev/node": None}}}
    client.CoreV1Api(api_server.api).patch_node("node-3", gone)

    run_round(following, at(12, 5))

    assert nodes(api_server)["node-3"][0] == "free"

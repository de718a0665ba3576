"""Nodes of units that are off: marked free, lent, and left in time."""

from kubernetes import client

from stacks.controller.loop import run_round
from tests.cluster.controller.day import NAME, NAMESPACE, NODES, SECOND, at, deployment, nodes, report


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


def test_a_mark_that_somebody_took_away_comes_back(custom, following, api_server):
    """Nodes are looked at every five minutes, whatever the status says."""
    run_round(following, at(12))
    run_round(following, at(12, 1))
    gone = {"metadata": {"labels": {"tidemill.dev/node": None}}}
    client.CoreV1Api(api_server.api).patch_node("node-3", gone)

    run_round(following, at(12, 5))

    assert nodes(api_server)["node-3"][0] == "free"

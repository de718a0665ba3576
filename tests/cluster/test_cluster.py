"""Pods on the real cluster: our Python in them, groups across nodes, names, Services; and what a crash does."""

import urllib.request

import pytest
from kubernetes import client

from tests.cluster.cluster import NODE_GRACE_S
from tests.cluster.objects import Objects

TALK = """
import os, socket, time
import torch
import runtime

def address_of(name):
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.gethostbyname(name)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)

leader = os.environ["LWS_LEADER_ADDRESS"]
print(torch.arange(3).sum().item(), os.getuid(), leader, address_of(leader), flush=True)
time.sleep(3600)
"""
OURS = "tidemill.test/harness"
SERVE = "echo from $(hostname) > /tmp/index.html; exec httpd -f -p 8000 -h /tmp"


@pytest.fixture(scope="module")
def core(cluster):
    """The core API; afterwards our namespaces are gone, not only going."""
    api = client.CoreV1Api(cluster.api)
    yield api
    cluster.wait_until(lambda: not api.list_namespace(label_selector=OURS).items, "our namespaces are gone", 60)


@pytest.fixture(scope="module")
def objects(cluster):
    """Our way of writing to the API server."""
    return Objects(cluster.api, str(cluster.logs / "discovery-of-tests.json"))


@pytest.fixture
def namespace(core):
    """A new one, deleted afterwards."""
    name = core.create_namespace({"metadata": {"generateName": "real-", "labels": {OURS: ""}}}).metadata.name
    yield name
    core.delete_namespace(name)


def pod_spec(cluster, *command, mounted=()):
    """Of an unprivileged pod with a read-only root, a scratch folder, and what else is `mounted` from the host."""
    mounts = [
        {"name": f"host-{index}", "mountPath": each["mount_path"], "readOnly": True}
        for index, each in enumerate(mounted)
    ]
    volumes = [
        {"name": f"host-{index}", "hostPath": {"path": each["host_path"], "type": "Directory"}}
        for index, each in enumerate(mounted)
    ]
    container = {
        "name": "main",
        "image": cluster.image,
        "command": command,
        "volumeMounts": [*mounts, {"name": "scratch", "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "terminationGracePeriodSeconds": 1,  # with 0 a pod vanishes at once, and its group may not notice
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [*volumes, {"name": "scratch", "emptyDir": {}}],
    }


def pair(namespace, spec):
    """A LeaderWorkerSet of one group of two pods on two nodes."""
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"group": "pair"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    template = {"metadata": {"labels": {"group": "pair"}}, "spec": spec | {"affinity": affinity}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "pair", "namespace": namespace},
        "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
    }


def pods(core, namespace):
    """Name -> pod."""
    return {each.metadata.name: each for each in core.list_namespaced_pod(namespace).items}


def ready_pods(core, namespace):
    """Name -> uid of each pod that is ready and stays."""
    return {
        name: each.metadata.uid
        for name, each in pods(core, namespace).items()
        if not each.metadata.deletion_timestamp
        and any(one.type == "Ready" and one.status == "True" for one in each.status.conditions or [])
    }


def start_pair(cluster, core, objects, namespace, spec):
    """Both pods' uids, when they are ready."""
    objects.apply(pair(namespace, spec))
    cluster.wait_until(lambda: len(ready_pods(core, namespace)) == 2, "both pods are ready", 60)
    return ready_pods(core, namespace)


def test_a_group_on_two_nodes_runs_our_python(cluster, core, objects, namespace):
    """Each pod imports torch and our runtime as an unprivileged user, and finds its leader by name across nodes."""
    names = start_pair(
        cluster, core, objects, namespace, pod_spec(cluster, "python", "-c", TALK, mounted=cluster.volumes)
    )

    def said(name):
        return core.read_namespaced_pod_log(name, namespace).split()

    cluster.wait_until(lambda: all(map(said, names)), "both pods have spoken", 60)
    there = pods(core, namespace)

    assert len({each.spec.node_name for each in there.values()}) == 2
    for name in names:
        assert said(name) == ["3", "10001", f"pair-0.pair.{namespace}", there["pair-0"].status.pod_ip]


def test_a_group_is_recreated_whole_when_a_worker_is_deleted(cluster, core, objects, namespace):
    """The real controller at work: the leader, which nobody touched, is replaced too."""
    before = start_pair(cluster, core, objects, namespace, pod_spec(cluster, "sleep", "3600"))

    core.delete_namespaced_pod("pair-0-1", namespace)

    def all_are_new():
        after = ready_pods(core, namespace)
        return after.keys() == before.keys() and not set(after.values()) & set(before.values())

    cluster.wait_until(all_are_new, "the group is recreated", 60)


def test_the_host_reaches_pods_and_services(cluster, core, namespace):
    """At their own addresses, so that a test is a client like any other."""
    core.create_namespaced_pod(
        namespace,
        {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": pod_spec(cluster, "sh", "-c", SERVE)},
    )
    service = core.create_namespaced_service(
        namespace, {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 8000}]}}
    )
    cluster.wait_until(lambda: "web" in ready_pods(core, namespace), "the pod is ready", 60)

    def answers(address):
        try:
            with urllib.request.urlopen(f"http://{address}:8000/", timeout=2) as answer:
                return answer.read() == b"from web\n"
        except OSError:
            return False

    cluster.wait_until(lambda: answers(pods(core, namespace)["web"].status.pod_ip), "the pod answers", 10)
    cluster.wait_until(lambda: answers(service.spec.cluster_ip), "the Service answers", 10)


def test_a_crashed_node_is_noticed_and_comes_back(cluster, core, namespace):
    """Silence is noticed within the grace period; after a boot the node's pods run again, on the same node."""
    spec = pod_spec(cluster, "sleep", "3600") | {"nodeName": "node-2", "tolerations": [{"operator": "Exists"}]}
    core.create_namespaced_pod(namespace, {"metadata": {"name": "stays"}, "spec": spec})
    cluster.wait_until(lambda: "stays" in ready_pods(core, namespace), "the pod is ready", 60)

    cluster.crash_node("node-2")
    try:
        cluster.wait_until(lambda: not cluster.is_ready("node-2"), "the crash is noticed", NODE_GRACE_S + 5)
        assert [name for name in cluster.nodes if not cluster.is_ready(name)] == ["node-2"]
        cluster.wait_until(lambda: not ready_pods(core, namespace), "the pod is not ready", 10)
    finally:
        cluster.boot_node("node-2")

    cluster.wait_until(lambda: "stays" in ready_pods(core, namespace), "the pod runs again", 60)
    (status,) = pods(core, namespace)["stays"].status.container_statuses
    assert status.restart_count == 1

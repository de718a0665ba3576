"""What a look at the cluster finds, against a real API server: exactly what someone changed, and nothing else.

Without Pulumi: `read` and `differences` are what a preview is made of, and take milliseconds.
"""

import copy
import itertools

import pytest
from kubernetes.client import CoreV1Api

from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.kube.diff import differences, path_text
from stacks.kube.drift import FIELD_MANAGER, is_surely_unchanged
from stacks.kube.lifecycle import read
from stacks.kube.manifest import Reference

NAMESPACE = "drift"
NUMBERS = itertools.count(1)

POD = {
    "terminationGracePeriodSeconds": 5,
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "volumes": [
        {"name": "scratch", "emptyDir": {"sizeLimit": "1024Mi"}},
        {"name": "launch", "configMap": {"name": "launch"}},
    ],
    "containers": [
        {
            "name": "rank",
            "image": "example.org/rank:1",
            "args": ["--launch", "/etc/launch.json"],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "C", "value": "3"},
            ],
            "ports": [{"containerPort": 8080}, {"containerPort": 8080, "protocol": "UDP"}],
            "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}, "limits": {"cpu": "2000m", "memory": "2Gi"}},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "launch", "mountPath": "/etc"}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
        },
        {"name": "beside", "image": "example.org/beside:1"},
    ],
}


def metadata(name, **more):
    return {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": name}, **more}


def template(name):
    return {"metadata": {"labels": {"app.kubernetes.io/name": name}}, "spec": copy.deepcopy(POD)}


MANIFESTS = {
    "ConfigMap": {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata("settings", annotations={"tidemill.test/a": "x"}),
        "data": {"a": "1", "b": "2", "empty": ""},
    },
    "Service": {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata("gateway"),
        "spec": {
            "selector": {"app": "gateway"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "metrics", "port": 81}],
        },
    },
    "ServiceAccount": {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata("rank"),
        "automountServiceAccountToken": False,
    },
    "Deployment": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata("gateway"),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": "gateway"}},
            "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
            "template": template("gateway"),
        },
    },
    "LeaderWorkerSet": {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata("unit"),
        "spec": {
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": template("unit")},
        },
    },
}

NAMED_LABEL = 'metadata.labels["app.kubernetes.io/name"]'

CONTAINERS = {
    "Deployment": "/spec/template/spec/containers",
    "LeaderWorkerSet": "/spec/leaderWorkerTemplate/workerTemplate/spec/containers",
}


def shown(path):
    """`/spec/template/spec/containers/0/image` -> `spec.template.spec.containers[0].image`."""
    return path_text(tuple(int(step) if step.isdecimal() else step for step in path.strip("/").split("/")))


def pod_edits(kind):
    """Name -> (JSON patch, what a preview names)."""
    at = CONTAINERS[kind]
    first, pod = f"{at}/0", at.rpartition("/")[0]
    sidecar, extra = {"name": "sidecar", "image": "s"}, {"name": "v", "emptyDir": {}}
    changed = {
        "image": (f"{first}/image", "other:2"),
        "argument": (f"{first}/args/1", "/elsewhere"),
        "variable": (f"{first}/env/2/value", "4"),
        "limit": (f"{first}/resources/limits/cpu", "3"),
        "toleration": (f"{pod}/tolerations/0/key", "cpu"),
        "grace period": (f"{pod}/terminationGracePeriodSeconds", 7),
    }
    removed = {
        "argument": f"{first}/args/1",
        "variable": f"{first}/env/1",
        "port": f"{first}/ports/0",
        "container": f"{at}/1",
        "limit": f"{first}/resources/limits/memory",
    }
    behind = [add(f"{at}/0", sidecar), replace(f"{at}/1/image", "other:2")]
    return {
        **{f"a changed {name}": ([replace(*each)], {shown(each[0]): "update"}) for name, each in changed.items()},
        **{f"a removed {name}": ([remove(path)], {shown(path): "add"}) for name, path in removed.items()},
        "a sidecar before ours": ([add(f"{at}/0", sidecar)], {}),
        "a variable before ours": ([add(f"{first}/env/0", {"name": "Z", "value": "z"})], {}),
        "a volume before ours": ([add(f"{pod}/volumes/0", extra)], {}),
        "a changed image behind a sidecar": (behind, {shown(f"{first}/image"): "update"}),
    }


def replace(path, value):
    return {"op": "replace", "path": path, "value": value}


def remove(path):
    return {"op": "remove", "path": path}


def add(path, value):
    return {"op": "add", "path": path, "value": value}


LABEL = "/metadata/labels/app.kubernetes.io~1name"
# What someone does with kubectl -> kind, JSON patch, and what a preview names.
EDITS = {
    **{f"{kind}: a changed label": (kind, [replace(LABEL, "x")], {NAMED_LABEL: "update"}) for kind in MANIFESTS},
    **{
        f"{kind}: removed labels": (kind, [remove("/metadata/labels")], {"metadata.labels": "add"})
        for kind in MANIFESTS
    },
    **{f"{kind}: {name}": (kind, *rest) for kind in CONTAINERS for name, rest in pod_edits(kind).items()},
    "changed data": ("ConfigMap", [replace("/data/a", "9")], {"data.a": "update"}),
    "removed data": ("ConfigMap", [remove("/data/b")], {"data.b": "add"}),
    "filled data": ("ConfigMap", [replace("/data/empty", "full")], {"data.empty": "update"}),
    "data beside ours": ("ConfigMap", [add("/data/theirs", "x")], {}),
    "an annotation beside ours": ("ConfigMap", [add("/metadata/annotations/someone", "else")], {}),
    "two edits": (
        "ConfigMap",
        [replace("/data/a", "9"), remove("/data/b")],
        {"data.a": "update", "data.b": "add"},
    ),
    "a changed account": (
        "ServiceAccount",
        [replace("/automountServiceAccountToken", True)],
        {"automountServiceAccountToken": "update"},
    ),
    "a changed port": ("Service", [replace("/spec/ports/0/targetPort", 9)], {"spec.ports[0].targetPort": "update"}),
    "a removed port": ("Service", [remove("/spec/ports/0")], {"spec.ports[0]": "add"}),
    "a port before ours": ("Service", [add("/spec/ports/0", {"name": "x", "port": 5})], {}),
    "a changed selector": ("Service", [replace("/spec/selector/app", "x")], {"spec.selector.app": "update"}),
    "a changed strategy": (
        "Deployment",
        [replace("/spec/strategy/rollingUpdate/maxSurge", 1)],
        {"spec.strategy.rollingUpdate.maxSurge": "update"},
    ),
    "a limit spelt otherwise": (
        "Deployment",
        [replace("/spec/template/spec/containers/0/resources/limits/cpu", "2")],
        {},
    ),
    "a limit spelt otherwise where the server keeps the spelling": (
        "LeaderWorkerSet",
        [replace(f"{CONTAINERS['LeaderWorkerSet']}/0/resources/limits/cpu", "2")],
        {shown(f"{CONTAINERS['LeaderWorkerSet']}/0/resources/limits/cpu"): "update"},
    ),
    "a count that is not ours": ("Deployment", [replace("/spec/replicas", 3)], {}),
    "a changed size": (
        "LeaderWorkerSet",
        [replace("/spec/leaderWorkerTemplate/size", 3)],
        {"spec.leaderWorkerTemplate.size": "update"},
    ),
}


@pytest.fixture(scope="module")
def api(api_server):
    """The provider's way to the API server, with a namespace of ours."""
    CoreV1Api(api_server.api).create_namespace({"metadata": {"name": NAMESPACE}})
    return Api(Connection(api_server.api))


def applied(api, kind):
    """A new object of that kind, as the provider makes it."""
    manifest = copy.deepcopy(MANIFESTS[kind])
    manifest["metadata"]["name"] += f"-{next(NUMBERS)}"
    api.apply(manifest, force=False)
    return manifest


def edit(api, manifest, patch):
    """As someone with kubectl does."""
    path, query = api._path(Reference.from_manifest(manifest)), [("fieldManager", "kubectl-edit")]
    api._connection.request("PATCH", path, "edit", query=query, body=patch, content_type="application/json-patch+json")


def changes(api, manifest):
    """What a preview would name: path -> change."""
    found = read(api, manifest)
    return {path_text(each.path): each.kind.value for each in differences(found.manifest, manifest)}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_nothing_has_drifted_right_after_apply(api, kind):
    """Whatever the server filled in, and however it spells a quantity."""
    manifest = applied(api, kind)

    assert read(api, manifest).manifest == manifest


@pytest.mark.parametrize("kind", ["ConfigMap", "ServiceAccount"])
def test_what_stands_as_applied_is_seen_without_a_dry_run(api, kind):
    """Most objects of a preview do: their fields are ours, and have our values."""
    manifest = applied(api, kind)

    assert is_surely_unchanged(manifest, api.get(Reference.from_manifest(manifest)))


@pytest.mark.parametrize(("kind", "patch", "expected"), EDITS.values(), ids=EDITS)
def test_exactly_what_was_edited_is_named_and_restored(api, kind, patch, expected):
    """A hand edit of ours is found at its path and undone; what others put beside it is not ours to judge."""
    manifest = applied(api, kind)
    edit(api, manifest, patch)

    assert changes(api, manifest) == expected
    assert not (expected and is_surely_unchanged(manifest, api.get(Reference.from_manifest(manifest))))

    api.apply(manifest, force=True)
    assert changes(api, manifest) == {}


def test_what_the_manifest_no_longer_has_and_we_still_own_is_drift(api):
    """An update that came only half way: applying again would remove it."""
    manifest = applied(api, "ConfigMap")
    api.apply(manifest | {"data": manifest["data"] | {"old": "x"}}, force=True)

    assert changes(api, manifest) == {"data.old": "delete"}


def test_an_object_that_is_gone_is_gone(api):
    """And so is one whose kind is."""
    assert read(api, MANIFESTS["ConfigMap"] | {"metadata": metadata("nowhere")}) is None
    assert read(api, {"apiVersion": "example.org/v1", "kind": "Gone", "metadata": metadata("x")}) is None


def test_an_object_that_someone_made_anew_differs_where_it_cannot_be_changed(api):
    """The server refuses the dry run, so the two are compared without it."""
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata("anew"),
        "spec": {
            "serviceName": "a",
            "selector": {"matchLabels": {"app.kubernetes.io/name": "anew"}},
            "template": template("anew"),
        },
    }
    api.apply(manifest | {"spec": manifest["spec"] | {"serviceName": "b"}}, force=True)

    assert changes(api, manifest)["spec.serviceName"] == "update"


def test_our_name_is_on_what_we_own(api):
    """So that a lost state finds its objects again."""
    live = api.get(Reference.from_manifest(applied(api, "ConfigMap")))

    assert [each["manager"] for each in live["metadata"]["managedFields"]] == [FIELD_MANAGER]

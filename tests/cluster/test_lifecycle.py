"""Creating and deleting against a real API server: what stands in the way is waited for, or said."""

import functools
import itertools
import json
import threading
import time
import uuid

import pytest
from kubernetes.client import CoreV1Api

from stacks.kube import lifecycle
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.kube.diff import differences, path_text
from stacks.kube.errors import NotGoneError, NotReadyError, RefusedError
from stacks.kube.manifest import Reference
from stacks.kube.waiting import Patience

NAMESPACE = "lifecycle"
NUMBERS = itertools.count(1)
FINALIZER = "tidemill.test/hold"


@pytest.fixture(scope="module")
def api(control_plane):
    """The provider's way to the control plane, with a namespace of ours."""
    CoreV1Api(control_plane.api).create_namespace({"metadata": {"name": NAMESPACE}})
    return Api(Connection(control_plane.api))


def patience(timeout_s, cancelled=None):
    return Patience(timeout_s, cancelled or threading.Event(), lambda text: None)


def patience_until(missing, happened):
    """One that its user loses once that is missing and has happened: no test waits longer than it must."""
    cancelled, said = threading.Event(), []

    def watch():
        while missing not in said or not happened():
            time.sleep(0.05)
        cancelled.set()

    threading.Thread(target=watch, daemon=True).start()
    return Patience(60, cancelled, said.append)


def config_map(**data):
    metadata = {"name": f"settings-{next(NUMBERS)}", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def workload(kind, **spec):
    name = f"{kind.lower()}-{next(NUMBERS)}"
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template} | spec
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


def held(manifest):
    """The same with a finalizer, which somebody must take away before it can go."""
    return manifest | {"metadata": manifest["metadata"] | {"finalizers": [FINALIZER]}}


def release(api, manifest):
    """Take it away."""
    api.apply(manifest, force=True)


def test_a_request_with_another_uid_changes_nothing(api):
    """What was looked at and what is changed are one object; the words are those of the fake server, too."""
    manifest = config_map(a="1")
    words = "somebody deleted it, or made it anew, at this very moment; repeat"

    with pytest.raises(RefusedError, match=words):
        api.apply(manifest, force=True, uid=str(uuid.uuid4()))
    assert api.get(Reference.from_manifest(manifest)) is None
    made = api.apply(manifest, force=False)
    with pytest.raises(RefusedError, match=words):
        api.apply(manifest | {"data": {"a": "2"}}, force=True, uid=str(uuid.uuid4()))
    api.delete(Reference.from_manifest(manifest), str(uuid.uuid4()))

    same = api.apply(manifest, force=True, uid=made["metadata"]["uid"])
    assert (same["metadata"]["uid"], same["data"]) == (made["metadata"]["uid"], {"a": "1"})
    assert "f:uid" not in json.dumps(same["metadata"]["managedFields"])


def test_what_does_not_go_is_said_with_what_holds_it(api):
    """At the deadline."""
    manifest = config_map(a="1")
    lifecycle.create(api, held(manifest), patience(5))
    reference = Reference.from_manifest(manifest)

    with pytest.raises(NotGoneError) as error:
        lifecycle.delete(api, manifest, patience(0.3))
    assert str(error.value) == f"{reference} is still there after 0 s: finalizers {FINALIZER}"

    release(api, manifest)
    lifecycle.delete(api, manifest, patience(10))
    assert api.get(reference) is None


def test_creating_waits_for_the_last_one_to_go(api):
    """A `destroy` that was cut short, then `up`."""
    manifest = config_map(a="1")
    lifecycle.create(api, held(manifest), patience(5))
    first = api.get(Reference.from_manifest(manifest))["metadata"]["uid"]
    api.delete(Reference.from_manifest(manifest), first)
    threading.Timer(0.5, release, (api, manifest)).start()

    lifecycle.create(api, manifest, patience(30))

    assert api.get(Reference.from_manifest(manifest))["metadata"]["uid"] != first


def test_deleting_what_is_gone_is_done(api):
    """And what never was, and what has no kind any more."""
    lifecycle.delete(api, config_map(), patience(5))
    lifecycle.delete(api, config_map() | {"apiVersion": "example.org/v1", "kind": "Gone"}, patience(5))


def test_deleting_waits_for_what_the_object_owns(api):
    """A Deployment is gone after its ReplicaSets and pods are."""
    manifest = workload("Deployment")
    mine = {"labelSelector": f"app={manifest['metadata']['name']}"}
    has_pods = functools.partial(api.list_all, "v1", "Pod", NAMESPACE, **mine)
    with pytest.raises(NotReadyError, match="0 of 1 pods available"):
        lifecycle.create(api, manifest, patience_until("0 of 1 pods available", has_pods))
    assert len(api.list_all("v1", "Pod", NAMESPACE, **mine)) == 1

    lifecycle.delete(api, manifest, patience(30))

    assert api.list_all("v1", "Pod", NAMESPACE, **mine) == []
    assert api.list_all("apps/v1", "ReplicaSet", NAMESPACE, **mine) == []


def test_cancelling_ends_the_wait_and_says_what_is_missing(api):
    """The object is there, and its state is known."""
    manifest, cancelled = workload("Deployment"), threading.Event()
    threading.Timer(0.5, cancelled.set).start()
    began = time.monotonic()

    with pytest.raises(NotReadyError, match=f"^Deployment {NAMESPACE}/.* is not ready when cancelled: "):
        lifecycle.create(api, manifest, patience(600, cancelled))

    assert time.monotonic() - began < 60
    lifecycle.delete(api, manifest, patience(30))


def test_why_pods_cannot_be_made_is_said(api, control_plane):
    """Here a quota of none."""
    core = CoreV1Api(control_plane.api)
    core.create_namespaced_resource_quota(NAMESPACE, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    manifest = workload("StatefulSet", serviceName="none")
    about = f"involvedObject.name={manifest['metadata']['name']},type=Warning"
    has_events = functools.partial(api.list_all, "v1", "Event", NAMESPACE, fieldSelector=about)

    with pytest.raises(NotReadyError) as error:
        lifecycle.create(api, manifest, patience_until("0 of 1 pods ready", has_events))

    core.delete_namespaced_resource_quota("none", NAMESPACE)
    assert error.value.reasons[0].endswith("is not ready when cancelled: 0 of 1 pods ready")
    assert error.value.reasons[1].startswith("FailedCreate: Create Pod ")
    assert "exceeded quota: none" in error.value.reasons[1]


RULE = "request.userInfo.username != 'admin' || !('frozen' in object.data)"  # the garbage collector may
POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "no-updates"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"]}
            ]
        },
        "validations": [{"expression": RULE, "message": "no update today"}],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "no-updates"},
    "spec": {"policyName": "no-updates", "validationActions": ["Deny"]},
}


def test_what_cannot_be_compared_can_be_looked_at_and_deleted(api):
    """An admission rule of the cluster refuses the dry run; that must keep nobody from `destroy`.

    The dry run is asked for since somebody has edited the object.
    """
    manifest = config_map(frozen="yes")
    lifecycle.create(api, manifest, patience(5))
    api.merge(Reference.from_manifest(manifest), {"data": {"frozen": "edited"}}, manager="kubectl-edit")
    for each in (POLICY, BINDING):
        api.apply(each, force=True)
    assert (
        patience(30).wait_until_none(lambda: None if lifecycle.read(api, manifest).drift_unknown else "not in force")
        is None
    )

    found = lifecycle.read(api, manifest)
    assert found.manifest == manifest
    assert "no update today" in found.drift_unknown
    with pytest.raises(RefusedError, match="no update today"):
        lifecycle.foresee_update(api, manifest, manifest)

    lifecycle.delete(api, manifest, patience(10))
    for each in (BINDING, POLICY):
        lifecycle.delete(api, each, patience(10))


FROZEN = [
    (workload("StatefulSet", serviceName="a", replicas=0), {"spec": {"serviceName": "b"}}, ["spec.serviceName"]),
    (
        config_map(a="1") | {"immutable": True},
        {"data": {"a": "2"}},
        ["data.a"],
    ),
    (workload("StatefulSet", serviceName="a", replicas=0), {"spec": {"minReadySeconds": 3}}, []),
]


@pytest.mark.parametrize(("manifest", "change", "expected"), FROZEN)
def test_changes_that_need_a_new_object_are_known_beforehand(api, manifest, change, expected):
    """The server is asked, by a dry run."""
    api.apply(manifest, force=False)
    changed = {key: manifest[key] | value if isinstance(value, dict) else value for key, value in change.items()}
    new = manifest | changed

    found = lifecycle.find_frozen_changes(api, new, list(differences(manifest, new)))

    assert [path_text(each.path) for each in found] == expected


def test_many_objects_are_made_at_once(api):
    """One client serves all threads."""
    manifests = [config_map(a=str(number)) for number in range(40)]
    threads = [threading.Thread(target=lifecycle.create, args=(api, each, patience(30))) for each in manifests]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert all(api.get(Reference.from_manifest(each)) for each in manifests)

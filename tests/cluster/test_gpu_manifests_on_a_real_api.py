"""The manifests of GPU pods before a real API server, with every field of the spec that changes them.

ComputeDomain is not served: `tests/templates` has its shape. Nothing runs here.
"""

import copy

import pytest
from kubernetes.client import ApiException

from tests.cluster.objects import Objects, assert_holds
from tests.templates.gpu_plans import gpu_plan, pod_of, rendered
from tests.templates.test_gpu_manifests import EVERYTHING

NAMESPACE = "gpus"
NOT_SERVED = ("ComputeDomain",)  # the Go proxy has no module with its definition
UNIT_KINDS = ("leaderworkerset", "statefulset")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """On H800s, whose prefill ranks keep KV in memory and on a disk."""
    return gpu_plan(tmp_path_factory.mktemp("gpu"), {"memory": "16GiB", "disk": {"path": "/mnt/kv", "size": "1TB"}})


@pytest.fixture(scope="module")
def objects(api_server, tmp_path_factory):
    """Our way of writing to the API server."""
    return Objects(api_server.api, str(tmp_path_factory.mktemp("discovery") / "cache.json"))


def documents(plan, unit_kind="leaderworkerset", **kubernetes):
    """What is rendered of it, of kinds that the server has."""
    found = rendered(
        plan, **EVERYTHING | {"namespace": NAMESPACE, "unit_kind": unit_kind, "monitors": True} | kubernetes
    )
    return [each for each in found if each["kind"] not in NOT_SERVED]


def pod(template, namespace):
    """A Pod of a unit's template; admission wants its PriorityClass, which is none of ours."""
    spec = {
        key: value for key, value in template["spec"].items() if key not in ("priorityClassName", "runtimeClassName")
    }
    metadata = template["metadata"] | {"name": "pod", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(("unit_kind", "disk"), [*zip(UNIT_KINDS, ({}, {"kv_cache_claim": "kv"}), strict=True)])
def test_every_object_is_stored_as_we_wrote_it(objects, plan, unit_kind, disk):
    """Each passes strictly, and the server changes and drops nothing; applying again changes nothing."""
    found = documents(plan, unit_kind, **disk)
    assert len([each for each in found if each["kind"] == "PodMonitor"]) == 2
    for document in found:
        objects.apply(document)
    for document in found:
        stored = objects.read(document)
        assert_holds(stored, document, f"{document['kind']}/{document['metadata']['name']}")
        objects.apply(document)
        assert objects.read(document) == stored


@pytest.mark.parametrize("unit_kind", UNIT_KINDS)
def test_an_unknown_field_of_a_pod_is_refused(objects, plan, unit_kind):
    """So that the test above can fail."""
    for document in documents(plan, unit_kind):
        objects.apply(document)
    wrong = copy.deepcopy(documents(plan, unit_kind))
    pod_of(wrong)["spec"]["containers"][0]["resources"]["claim"] = []
    (unit,) = (each for each in wrong if each["metadata"]["name"] == "river-decode-0" and "et" in each["kind"][-3:])

    with pytest.raises(ApiException) as refused:
        objects.apply(unit, dry_run=True)

    assert "claim" in refused.value.body


def test_pods_are_admitted_where_the_namespace_says_so(objects, plan):
    """The label that we render admits them; `baseline` does not, and says why."""
    found = documents(plan)
    for document in found:
        objects.apply(document)
    template = pod_of(found)
    baseline = {"name": "baseline", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}
    objects.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": baseline})
    for document in found:
        if document["kind"] == "ServiceAccount":
            objects.apply(document | {"metadata": document["metadata"] | {"namespace": "baseline"}})

    admitted = objects.create(pod(template, NAMESPACE), dry_run=True)
    with pytest.raises(ApiException) as refused:
        objects.create(pod(template, "baseline"), dry_run=True)

    assert admitted["spec"]["containers"][0]["securityContext"]["runAsUser"] == 0
    assert "IPC_LOCK" in refused.value.body
    assert "hostPath" in refused.value.body


def test_pods_with_gpus_alone_meet_the_restricted_standard(objects, plan):
    """GPUs need no privilege: without RDMA and folders of nodes, nothing is different from pods on CPUs."""
    template = pod_of(rendered(plan))
    restricted = {"name": "restricted-gpus", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    objects.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": restricted})
    for document in rendered(plan):
        if document["kind"] == "ServiceAccount":
            objects.apply(document | {"metadata": document["metadata"] | {"namespace": "restricted-gpus"}})

    accepted = objects.create(pod(template, "restricted-gpus"), dry_run=True)

    assert accepted["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}

"""The demo's manifests before a real API server: what it accepts, what it refuses, and who owns which field."""

import copy
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiException

from planner.compiler import compile_plan
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import check_spec
from tests.cluster.objects import FIELD_MANAGER, Objects, assert_holds

DEMO = Path(__file__).parents[2] / "stacks" / "specs" / "demo.yaml"
DOCUMENTS = {
    name: yaml.safe_load(text)
    for name, text in render_files(compile_plan(check_spec(DEMO))).items()
    if name != KUSTOMIZATION
}
WITH_PODS = [name for name, each in DOCUMENTS.items() if each["kind"] in ("Deployment", "LeaderWorkerSet")]
LEADER_WORKER_SETS = [name for name, each in DOCUMENTS.items() if each["kind"] == "LeaderWorkerSet"]


@pytest.fixture(scope="module")
def objects(api_server, tmp_path_factory):
    """Our way of writing to the API server."""
    return Objects(api_server.api, str(tmp_path_factory.mktemp("discovery") / "cache.json"))


@pytest.fixture(scope="module")
def namespace(objects):
    """The plan's namespace, really there."""
    (document,) = (each for each in DOCUMENTS.values() if each["kind"] == "Namespace")
    return objects.apply(document)["metadata"]["name"]


@pytest.fixture(scope="module")
def applied(objects, namespace):
    """File name -> the object as the server stored it, after applying each file once in the order of rendering."""
    for document in DOCUMENTS.values():
        objects.apply(document)
    return {name: objects.read(document) for name, document in DOCUMENTS.items()}


@pytest.fixture(scope="module")
def restricted(objects):
    """A namespace that admits only pods of the restricted Pod Security Standard, with the accounts that pods name."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": "restricted", "labels": labels}
    objects.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    for document in DOCUMENTS.values():
        if document["kind"] == "ServiceAccount":
            objects.apply(document | {"metadata": document["metadata"] | {"namespace": "restricted"}})
    return "restricted"


def pod(template, namespace):
    """A Pod of a pod template."""
    metadata = template["metadata"] | {"name": "pod", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def pod_template(document):
    """Of a LeaderWorkerSet or a Deployment."""
    if document["kind"] == "LeaderWorkerSet":
        return document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return document["spec"]["template"]


def owned_fields_of_spec(stored):
    """Manager -> the fields directly under `spec` that it owns."""
    entries = stored["metadata"]["managedFields"]
    return {each["manager"]: {key.removeprefix("f:") for key in each["fieldsV1"].get("f:spec", {})} for each in entries}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_object_passes_a_strict_dry_run(objects, namespace, name):
    """The server accepts each rendered object by server-side apply and knows every field in it."""
    document = DOCUMENTS[name]

    accepted = objects.apply(document, dry_run=True)

    assert accepted["kind"] == document["kind"]
    assert accepted["metadata"]["name"] == document["metadata"]["name"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_we_set_is_stored_as_we_set_it(applied, name):
    """The server adds defaults and status, and changes or drops nothing of ours."""
    assert_holds(applied[name], DOCUMENTS[name], name)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_applying_again_changes_nothing(objects, applied, name):
    """Not even the resource version: whoever watches the object sees no event, and no pod restarts."""
    before = objects.read(DOCUMENTS[name])

    objects.apply(DOCUMENTS[name])

    assert objects.read(DOCUMENTS[name]) == before


def test_a_changed_object_gets_a_new_version(objects, applied):
    """So that the test above can fail."""
    name = LEADER_WORKER_SETS[0]
    changed = copy.deepcopy(DOCUMENTS[name])
    changed["metadata"]["annotations"]["tidemill.test/changed"] = "yes"
    before = objects.read(DOCUMENTS[name])

    after = objects.apply(changed)
    objects.apply(DOCUMENTS[name])

    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]


@pytest.mark.parametrize("name", [name for name, each in DOCUMENTS.items() if "spec" in each])
def test_an_unknown_field_is_refused(objects, namespace, name):
    """A misspelt field is an error that names it, not a field silently dropped."""
    document = copy.deepcopy(DOCUMENTS[name])
    document["spec"]["replicsa"] = 2

    with pytest.raises(ApiException) as refused:
        objects.apply(document, dry_run=True)

    assert "replicsa" in refused.value.body


@pytest.mark.parametrize("name", WITH_PODS)
def test_an_unknown_field_deep_in_a_pod_template_is_refused(objects, namespace, name):
    """The schema of LeaderWorkerSet covers pods as the built-in kinds do."""
    document = copy.deepcopy(DOCUMENTS[name])
    pod_template(document)["spec"]["containers"][0]["imagePullPolcy"] = "Never"

    with pytest.raises(ApiException) as refused:
        objects.apply(document, dry_run=True)

    assert "imagePullPolcy" in refused.value.body


@pytest.mark.parametrize("name", LEADER_WORKER_SETS)
def test_nobody_owns_replicas(applied, name):
    """The server's default is one group; the field is not ours, so whoever scales the unit meets no conflict."""
    assert applied[name]["spec"]["replicas"] == 1
    assert owned_fields_of_spec(applied[name]) == {FIELD_MANAGER: set(DOCUMENTS[name]["spec"])}
    assert "replicas" not in DOCUMENTS[name]["spec"]


@pytest.mark.parametrize("name", WITH_PODS)
def test_pods_are_admitted_by_the_restricted_standard(objects, restricted, name):
    """Our pods need no privilege that `pod-security.kubernetes.io/enforce: restricted` forbids."""
    accepted = objects.create(pod(pod_template(DOCUMENTS[name]), restricted), dry_run=True)

    assert accepted["spec"]["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("name", LEADER_WORKER_SETS)
def test_a_pod_that_may_run_as_root_is_not_admitted(objects, restricted, name):
    """So that the test above can fail."""
    template = copy.deepcopy(pod_template(DOCUMENTS[name]))
    del template["spec"]["securityContext"]["runAsNonRoot"]

    with pytest.raises(ApiException, match="runAsNonRoot") as refused:
        objects.create(pod(template, restricted), dry_run=True)

    assert refused.value.status == 403

"""Several objects as one thing, against a fake API server: their order, and what is there when the work ends early."""

import threading

import pytest

from stacks.kube import object_set
from stacks.kube.errors import PartlyStoredError, RefusedError, SeveralErrors
from stacks.kube.manifest import Reference
from stacks.kube.waiting import Patience
from tests.stacks.kube.fake_api import running_fake_api

MAPS = "/api/v1/namespaces/demo/configmaps"
SERVICE_PATH = "/api/v1/namespaces/demo/services/unit"
UNIT_PATH = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/demo/leaderworkersets/unit"
LONG_S = 60


def made(kind, name, api_version="v1", **more):
    metadata = {"name": name, "namespace": "demo", "labels": {"tidemill.dev/plan": "demo"}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata} | more


def objects(launch="unit-a"):
    """A unit's: its launch file, its Service and its group, which names the file."""
    return {
        "ConfigMap": made("ConfigMap", launch),
        "LeaderWorkerSet": made("LeaderWorkerSet", "unit", "leaderworkerset.x-k8s.io/v1", spec={"file": launch}),
        "Service": made("Service", "unit"),
    }


@pytest.fixture
def server():
    """(fake, api)."""
    with running_fake_api() as both:
        yield both


@pytest.fixture
def ready(server):
    """The same, with a controller that makes each group ready."""
    fake, _ = server
    status = {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1}
    available = {"conditions": [{"type": "Available", "status": "True"}]}
    store = fake.store

    def store_ready(path, manifest, manager="tidemill"):
        return store(path, manifest | ({"status": status | available} if path == UNIT_PATH else {}), manager)

    fake.store = store_ready
    return server


def store(api, old, new, timeout_s=LONG_S, kept_uids=()):
    """What is told, by name."""
    told = {}
    patience = Patience(timeout_s, threading.Event(), lambda text: None)
    object_set.store(
        api, old, new, patience, lambda reference, one: told.update({str(reference): one.uid}), kept_uids=kept_uids
    )
    return told


def changes(fake):
    """Verb and last two parts of the path of each request that is no look."""
    return [(verb, "/".join(path.split("/")[-2:])) for verb, path in fake.requests if verb != "GET"]


def test_what_runs_pods_is_made_last_and_deleted_first(ready):
    """Pods need what they mount, and a name."""
    fake, api = ready

    told = store(api, {}, objects())
    object_set.delete(api, objects(), Patience(LONG_S, threading.Event(), lambda text: None))

    there = ["configmaps/unit-a", "services/unit", "leaderworkersets/unit"]
    assert changes(fake) == [("PATCH", each) for each in there] + [("DELETE", each) for each in reversed(there)]
    assert list(told) == ["ConfigMap demo/unit-a", "Service demo/unit", "LeaderWorkerSet demo/unit"]
    assert fake.objects == {}


def test_a_launch_file_goes_when_its_group_no_longer_needs_it(ready):
    """The new one comes first, then the group changes, then the old one goes; the group stays the same object."""
    fake, api = ready
    store(api, {}, objects("unit-a"))
    uid = fake.objects[UNIT_PATH]["metadata"]["uid"]
    fake.requests.clear()

    store(api, objects("unit-a"), objects("unit-b"))

    assert changes(fake)[0] == ("PATCH", "configmaps/unit-b")
    assert changes(fake)[-2:] == [("PATCH", "leaderworkersets/unit"), ("DELETE", "configmaps/unit-a")]
    assert fake.objects[UNIT_PATH]["metadata"]["uid"] == uid


def test_what_this_run_has_taken_up_stays(ready):
    """Another resource of the run has it now."""
    fake, api = ready
    told = store(api, {}, objects("unit-a"))

    store(api, objects("unit-a"), objects("unit-b"), kept_uids=[told["ConfigMap demo/unit-a"]])

    assert f"{MAPS}/unit-a" in fake.objects


def test_a_field_that_cannot_change_replaces_its_object_alone(ready):
    """The old one first; the others stay the objects that they are."""
    fake, api = ready
    store(api, {}, objects())
    uids = {path: each["metadata"]["uid"] for path, each in fake.objects.items()}
    changed = objects() | {"Service": made("Service", "unit", spec={"clusterIP": "None"})}
    fake.refused[SERVICE_PATH] = (422, "spec.clusterIP: Invalid value: field is immutable")

    store(api, objects(), changed)

    other = {path for path, each in fake.objects.items() if each["metadata"]["uid"] != uids[path]}
    assert other == {SERVICE_PATH}
    assert fake.objects[SERVICE_PATH]["spec"] == {"clusterIP": "None"}


def test_a_first_object_that_is_refused_leaves_nothing_behind(server):
    """So nothing has to be in a state."""
    fake, api = server
    fake.forbidden[f"{MAPS}/unit-a"] = "no"

    with pytest.raises(RefusedError):
        store(api, {}, objects())

    assert fake.objects == {}


def test_what_was_made_before_a_refusal_is_told(server):
    """It belongs into the state, where `destroy` finds it."""
    fake, api = server
    fake.forbidden[UNIT_PATH] = "no"

    with pytest.raises(PartlyStoredError) as error:
        store(api, {}, objects())

    assert set(error.value.existing) == {"ConfigMap", "Service"}
    assert len(error.value.reasons) == 1
    assert "LeaderWorkerSet demo/unit" in error.value.reasons[0]


def test_half_way_to_another_launch_file_both_are_there(ready):
    """The group still needs the old one, and the next run deletes it."""
    fake, api = ready
    store(api, {}, objects("unit-a"))
    fake.forbidden[SERVICE_PATH] = "no"

    with pytest.raises(PartlyStoredError) as error:
        store(api, objects("unit-a"), objects("unit-b"))

    there = error.value.existing
    assert {key: each["metadata"]["name"] for key, each in there.items()} == {
        "ConfigMap": "unit-b",
        "ConfigMap unit-a": "unit-a",
        "LeaderWorkerSet": "unit",
        "Service": "unit",
    }
    assert there["LeaderWorkerSet"]["spec"] == {"file": "unit-a"}

    del fake.forbidden[SERVICE_PATH]
    store(api, there, objects("unit-b"))
    assert set(fake.objects) == {f"{MAPS}/unit-b", SERVICE_PATH, UNIT_PATH}


def test_a_group_that_is_not_ready_in_time_is_there(server):
    """With why; and so is all that came before it."""
    _, api = server

    with pytest.raises(PartlyStoredError, match="LeaderWorkerSet demo/unit is not ready after 0 s") as error:
        store(api, {}, objects(), timeout_s=0.1)

    assert error.value.existing == objects()


def test_all_refusals_are_foreseen_at_once(server):
    """Each is a sentence of one error."""
    fake, api = server
    for path in (f"{MAPS}/unit-a", UNIT_PATH):
        fake.forbidden[path] = "no"

    with pytest.raises(SeveralErrors, match=r"^2 errors occurred:\n\t\* ConfigMap .*\n\t\* LeaderWorkerSet "):
        object_set.foresee(api, {}, objects())

    assert changes(fake) == []


def test_those_that_are_gone_are_not_found(server):
    """And the others are."""
    fake, api = server
    fake.store(SERVICE_PATH, objects()["Service"])

    assert list(object_set.read(api, objects())) == ["Service"]
    assert Reference.from_manifest(object_set.main_object(objects())[1]).kind == "LeaderWorkerSet"

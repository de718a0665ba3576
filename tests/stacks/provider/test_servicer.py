"""What the provider does for Pulumi's requests, against a fake API server."""

import threading

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from stacks.kube.manifest import type_token
from stacks.provider import occupants, session
from stacks.provider.servicer import InitFailed, Servicer
from stacks.provider.wire import to_plain, to_struct
from tests.stacks.kube.fake_api import running_fake_api

LABELS = {"tidemill.dev/plan": "demo"}
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "demo", "labels": LABELS},
    "data": {"a": "1"},
}
MAP_PATH = "/api/v1/namespaces/demo/configmaps/settings"
GROUPS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/demo/leaderworkersets"


class SilentEngine:
    """Pulumi's engine, which keeps what it is warned of."""

    def __init__(self):
        self.warnings = []

    def warn(self, urn, text):
        self.warnings.append(text)

    def progress(self, urn, text):
        pass


@pytest.fixture
def fake(monkeypatch):
    """The server that every context leads to."""
    with running_fake_api() as (fake, api):
        monkeypatch.setattr(session, "connect", lambda context: api)
        yield fake


@pytest.fixture
def servicer(fake):
    """A configured provider."""
    made = Servicer(SilentEngine())
    made.Configure(pb.ConfigureRequest(), None)
    return made


def create(servicer, manifest):
    request = pb.CreateRequest(
        type=type_token(manifest["apiVersion"], manifest["kind"]), properties=to_struct(manifest)
    )
    return servicer.Create(request, None)


def delete(servicer, manifest):
    request = pb.DeleteRequest(
        type=type_token(manifest["apiVersion"], manifest["kind"]), old_inputs=to_struct(manifest), timeout=30
    )
    return servicer.Delete(request, None)


def group(unit):
    metadata = {"name": unit, "namespace": "demo", "labels": LABELS}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata, "spec": {}}


def listed(*units):
    return to_struct({"objects": {unit: group(unit) for unit in units}})


def relist(servicer, old, new, *, preview=False):
    """The list of units changes."""
    request = pb.UpdateRequest(type=occupants.TOKEN, old_inputs=old, news=new, preview=preview, timeout=30)
    return servicer.Update(request, None)


def test_a_replacement_under_the_same_name_keeps_the_new_object(fake, servicer):
    """Pulumi makes it, which takes up the old one, and then deletes the old one, which is the new one by now."""
    fake.store(MAP_PATH, CONFIG_MAP)

    create(servicer, CONFIG_MAP)
    delete(servicer, CONFIG_MAP)

    assert MAP_PATH in fake.objects


def test_what_another_run_made_is_deleted(fake, servicer):
    """A `destroy` has made nothing itself."""
    fake.store(MAP_PATH, CONFIG_MAP)

    delete(servicer, CONFIG_MAP)

    assert fake.objects == {}


def test_a_unit_that_leaves_the_list_is_gone_when_the_list_is_new(fake, servicer):
    """In a preview nothing happens; then the one that left is deleted, and no other."""
    for unit in ("prefill-0", "prefill-1"):
        fake.store(f"{GROUPS}/{unit}", group(unit))
    old, new = listed("prefill-0", "prefill-1"), listed("prefill-0", "decode-2")

    relist(servicer, old, new, preview=True)
    assert len(fake.objects) == 2
    answer = relist(servicer, old, new)

    assert set(fake.objects) == {f"{GROUPS}/prefill-0"}
    assert answer.properties == to_struct({})


def test_a_new_list_waits_until_all_that_left_are_gone(fake, servicer):
    """Two leave: both are told before either is awaited, so that they end side by side."""
    both_told = threading.Barrier(2, timeout=30)
    for unit in ("prefill-0", "prefill-1"):
        fake.store(f"{GROUPS}/{unit}", group(unit))
    fake.before["DELETE"] = [lambda fake: both_told.wait()] * 2

    relist(servicer, listed("prefill-0", "prefill-1"), listed())

    assert fake.objects == {}


def test_a_list_is_made_read_and_deleted_without_the_cluster(fake, servicer):
    """It says what was listed last, and nothing else."""
    made = servicer.Create(pb.CreateRequest(type=occupants.TOKEN, properties=listed("prefill-0")), None)
    request = pb.ReadRequest(id=made.id, type=occupants.TOKEN, properties=made.properties, inputs=listed("prefill-0"))
    read = servicer.Read(request, None)
    servicer.Delete(pb.DeleteRequest(id=made.id, type=occupants.TOKEN, old_inputs=listed("prefill-0")), None)

    assert (read.id, read.inputs, read.properties) == (made.id, listed("prefill-0"), to_struct({}))
    assert not made.refresh_before_update
    assert fake.requests == []


def arrive(servicer, *units, timeout_s=30):
    """All units that are new are awaited."""
    listed = to_struct({"names": list(units)})
    return servicer.Create(pb.CreateRequest(type=occupants.ARRIVALS, properties=listed, timeout=timeout_s), None)


def become_ready(fake, unit):
    """What the unit's controller says of it when all its pods are ready."""
    live = fake.objects[f"{GROUPS}/{unit}"]
    counts = {"updatedReplicas": 1, "readyReplicas": 1}
    seen = {"observedGeneration": live["metadata"]["generation"]}
    live["status"] = seen | counts | {"conditions": [{"type": "Available", "status": "True"}]}


def test_units_that_are_new_to_the_list_are_awaited_together(fake, servicer):
    """Each is made without waiting for its pods, so that none holds one of Pulumi's places; then all are awaited."""
    servicer.Create(pb.CreateRequest(type=occupants.TOKEN, properties=listed("decode-0", "decode-1")), None)
    create(servicer, group("decode-0"))
    create(servicer, group("decode-1"))
    for unit in ("decode-0", "decode-1"):
        threading.Timer(0.3, become_ready, (fake, unit)).start()
    arrive(servicer, "decode-0", "decode-1")

    assert all("status" in each for each in fake.objects.values())


def test_a_unit_that_is_not_new_is_awaited_by_whoever_makes_it(fake, servicer):
    """Somebody deleted it: the lists are as before, and nothing would wait for it afterwards."""
    relist(servicer, listed("decode-0"), listed("decode-0", "decode-1"))
    request = pb.CreateRequest(
        type=type_token(group("")["apiVersion"], "LeaderWorkerSet"),
        properties=to_struct(group("decode-0")),
        timeout=0.2,
    )

    with pytest.raises(InitFailed, match="decode-0 is not ready after 0 s: not yet seen by its controller"):
        servicer.Create.__wrapped__(servicer, request)


def test_every_new_unit_that_is_not_ready_in_time_is_named(fake, servicer):
    """With what it lacks; one that somebody has deleted is named too, and those that are ready are not."""
    units = ("decode-0", "decode-1", "decode-2", "decode-3")
    servicer.Create(pb.CreateRequest(type=occupants.TOKEN, properties=listed(*units)), None)
    for unit in units:
        create(servicer, group(unit))
    become_ready(fake, "decode-0")
    become_ready(fake, "decode-2")
    del fake.objects[f"{GROUPS}/decode-3"]
    request = pb.CreateRequest(type=occupants.ARRIVALS, properties=to_struct({"names": list(units)}), timeout=0.2)

    with pytest.raises(InitFailed) as error:
        servicer.Create.__wrapped__(servicer, request)

    assert list(error.value.detail.reasons) == [
        "LeaderWorkerSet demo/decode-1 is not ready after 0 s: not yet seen by its controller",
        "nothing has acted on it; check that the controller of LeaderWorkerSets runs",
        "LeaderWorkerSet demo/decode-3 was deleted by somebody before it was ready; repeat to make it again",
    ]


def test_a_preview_names_the_units_that_come_and_go(servicer):
    """By name, however many stand between them."""
    old, new = listed("decode-0", "prefill-0", "prefill-1"), listed("decode-0", "decode-1", "prefill-0")

    diff = servicer.Diff(pb.DiffRequest(type=occupants.TOKEN, old_inputs=old, news=new), None)

    kinds = {path: pb.PropertyDiff.Kind.Name(each.kind) for path, each in diff.detailedDiff.items()}
    assert kinds == {"objects.decode-1": "ADD", "objects.prefill-1": "DELETE"}
    assert list(diff.replaces) == []


@pytest.mark.parametrize("objects", [None, [], {"a": "b"}, {"a": {"kind": "ConfigMap", "metadata": {"name": "a"}}}])
def test_a_list_of_no_objects_is_refused(servicer, objects):
    """With what it should be."""
    request = pb.CheckRequest(type=occupants.TOKEN, news=to_struct({"objects": objects}))

    (failure,) = servicer.Check(request, None).failures

    assert failure.property == "objects"


def test_a_unit_scaled_to_nothing_is_warned_of(fake, servicer):
    """`up` has nothing to wait for, and must not look as if the unit served."""
    unit = group("decode-0") | {"spec": {}}
    fake.store(f"{GROUPS}/decode-0", unit)
    fake.after["PATCH"] = [lambda fake: fake.objects[f"{GROUPS}/decode-0"]["spec"].update(replicas=0)]

    answer = create(servicer, unit)

    assert answer.id == "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet/demo/decode-0"
    assert servicer.engine.warnings == [
        "LeaderWorkerSet demo/decode-0 is scaled to 0 and serves nothing until somebody scales it"
    ]


def test_a_state_holds_each_manifest_once(fake, servicer):
    """As inputs. Outputs only name the object, since Pulumi writes the whole state at each step."""
    kind, manifest = type_token("v1", "ConfigMap"), to_struct(CONFIG_MAP)
    made = create(servicer, CONFIG_MAP)
    read = servicer.Read(pb.ReadRequest(id=made.id, type=kind, properties=made.properties, inputs=manifest), None)
    changes = [pb.UpdateRequest(type=kind, old_inputs=manifest, news=manifest, preview=each) for each in (True, False)]
    answers = [made, read, *(servicer.Update(each, None) for each in changes)]

    assert read.inputs == manifest
    for answer in answers:
        named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "demo"}}
        assert to_plain(answer.properties) == named

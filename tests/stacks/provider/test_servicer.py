"""What the provider does for Pulumi's requests, against a fake API server."""

import threading

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import provider_pb2 as pb

from planner.facts.names import UNPRUNED
from stacks.kube.manifest import OBJECTS, type_token
from stacks.provider import config, occupants
from stacks.provider.servicer import InitFailed, Servicer
from stacks.provider.wire import UNKNOWN, decode_struct, encode_struct
from tests.stacks.controller.test_observe import SPEC
from tests.stacks.kube.fake_api import running_fake_api

LABELS = {"tidemill.dev/plan": "demo"}
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "demo", "labels": LABELS},
    "data": {"a": "1"},
}
MAP_PATH = "/api/v1/namespaces/demo/configmaps/settings"
SERVICE_PATH = "/api/v1/namespaces/demo/services/decode-0"
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
        monkeypatch.setattr(config, "connect", lambda context, kubeconfig: api)
        yield fake


@pytest.fixture
def servicer(fake):
    """A configured provider."""
    made = Servicer(SilentEngine())
    made.Configure(pb.ConfigureRequest(), None)
    return made


def create(servicer, manifest):
    request = pb.CreateRequest(
        type=type_token(manifest["apiVersion"], manifest["kind"]), properties=encode_struct(manifest)
    )
    return servicer.Create(request, None)


def delete(servicer, manifest):
    request = pb.DeleteRequest(
        type=type_token(manifest["apiVersion"], manifest["kind"]), old_inputs=encode_struct(manifest), timeout=30
    )
    return servicer.Delete(request, None)


def group(unit):
    metadata = {"name": unit, "namespace": "demo", "labels": LABELS}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata, "spec": {}}


def listed(*units, **more):
    return encode_struct({"objects": {unit: group(unit) for unit in units}} | more)


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


def test_an_object_that_is_ready_as_it_is_stored_is_not_looked_at_again(fake, servicer):
    """Few of hundreds of objects have anything to wait for."""
    create(servicer, CONFIG_MAP)

    assert [verb for verb, path in fake.requests if path == MAP_PATH] == ["GET", "PATCH"]


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
    assert answer.properties == encode_struct({})


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

    assert (read.id, read.inputs, read.properties) == (made.id, listed("prefill-0"), encode_struct({}))
    assert not made.refresh_before_update
    assert fake.requests == []


ARRIVE = pb.CreateRequest(type=occupants.ARRIVALS, properties=encode_struct({}), timeout=0.2)


def arrive(servicer):
    """All units that were stored without waiting are awaited."""
    return servicer.Create(pb.CreateRequest(type=occupants.ARRIVALS, properties=encode_struct({}), timeout=30), None)


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
    arrive(servicer)

    assert all("status" in each for each in fake.objects.values())


def test_a_unit_that_is_not_new_is_awaited_by_whoever_makes_it(fake, servicer):
    """Somebody deleted it: the lists are as before, and nothing would wait for it afterwards."""
    relist(servicer, listed("decode-0"), listed("decode-0", "decode-1"))
    request = pb.CreateRequest(
        type=type_token(group("")["apiVersion"], "LeaderWorkerSet"),
        properties=encode_struct(group("decode-0")),
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

    with pytest.raises(InitFailed) as error:
        servicer.Create.__wrapped__(servicer, ARRIVE)

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
    request = pb.CheckRequest(type=occupants.TOKEN, news=encode_struct({"objects": objects}))

    (failure,) = servicer.Check(request, None).failures

    assert failure.property == "objects"


def controlled(unit, size=1, **spec):
    """A unit whose turns are a controller's."""
    strategy = {"rollingUpdateConfiguration": {"partition": 1}}
    return group(unit) | {"spec": {"rolloutStrategy": strategy, "leaderWorkerTemplate": {"size": size}} | spec}


@pytest.mark.parametrize(("before", "is_warned_of"), [({"size": 2}, True), ({}, False), ({"replicas": 0}, False)])
def test_a_unit_that_waits_for_its_turn_is_warned_of(fake, servicer, before, is_warned_of):
    """`up` is done with it: its pods serve on. One that has this template, or that the day has off, waits for none."""
    fake.store(f"{GROUPS}/decode-0", controlled("decode-0", **before))

    create(servicer, controlled("decode-0"))
    if is_warned_of:
        arrive(servicer)

    text = "LeaderWorkerSet demo/decode-0 keeps its pods and waits for its turn, which the controller gives"
    assert servicer.engine.warnings == [text] * is_warned_of


def test_units_of_a_controller_are_awaited_after_it_has_the_new_plan(fake, servicer):
    """None by itself, though it is not new to the list; and nothing is awaited where nothing was stored."""
    nothing = pb.DiffRequest(type=occupants.ARRIVALS, old_inputs=encode_struct({}), news=encode_struct({}))
    assert servicer.Diff(nothing, None).changes == pb.DiffResponse.DIFF_NONE

    create(servicer, controlled("decode-0"))

    assert servicer.Diff(nothing, None).changes == pb.DiffResponse.DIFF_SOME
    with pytest.raises(InitFailed, match="decode-0 is not ready after 0 s: not yet seen by its controller"):
        servicer.Create.__wrapped__(servicer, ARRIVE)
    become_ready(fake, "decode-0")
    arrive(servicer)


@pytest.fixture
def followed(fake):
    """A plan's controller has looked at two units of it, `prefill-0` and `prefill-1`."""
    deployments = "/apis/tidemill.dev/v1alpha1"
    fake.kinds[deployments] = [{"name": "deployments", "kind": "TidemillDeployment", "namespaced": True}]
    metadata = {"name": "demo", "namespace": "demo", "labels": LABELS, "creationTimestamp": "2026-12-01T00:00:00Z"}
    deployment = {"metadata": metadata, "spec": SPEC}
    path = f"{deployments}/namespaces/demo/deployments/demo"
    fake.store(path, deployment | {"status": {"unitNames": ["prefill-0", "prefill-1"]}})
    for unit in ("prefill-0", "prefill-1", "prefill-2"):
        fake.store(f"{GROUPS}/{unit}", controlled(unit))
    return path


def end(servicer, unit):
    """Pulumi deletes the resource of a unit."""
    inputs = encode_struct({"LeaderWorkerSet": controlled(unit)})
    servicer.Delete(pb.DeleteRequest(type=OBJECTS, old_inputs=inputs, timeout=30), None)


def test_a_unit_that_leaves_is_the_controllers_to_delete(fake, servicer, followed):
    """Neither the list takes it nor Pulumi afterwards; one that the controller has not seen yet goes at once."""
    relist(servicer, listed("prefill-0", "prefill-1", "prefill-2"), listed("prefill-0", controller=True))
    end(servicer, "prefill-1")

    assert {path for path in fake.objects if path.startswith(GROUPS)} == {f"{GROUPS}/prefill-0", f"{GROUPS}/prefill-1"}
    text = "LeaderWorkerSet demo/prefill-1 has left the plan, and stays until the controller deletes it"
    assert servicer.engine.warnings == [text]


def test_a_unit_of_the_plan_is_replaced_though_there_is_a_controller(fake, servicer, followed):
    """Pulumi deletes the old object and then makes the new one."""
    servicer.Check(
        pb.CheckRequest(type=OBJECTS, news=encode_struct({"LeaderWorkerSet": controlled("prefill-0")})), None
    )

    end(servicer, "prefill-0")

    assert f"{GROUPS}/prefill-0" not in fake.objects


def test_all_units_are_pulumis_once_the_controller_is_gone(fake, servicer, followed):
    """As when everything is destroyed, where it goes first."""
    del fake.objects[followed]

    end(servicer, "prefill-1")

    assert f"{GROUPS}/prefill-1" not in fake.objects


def test_what_a_controller_has_not_deleted_goes_with_the_list(fake, servicer):
    """Such a unit has left the plan, and Pulumi's state; so have launch files. What any tool prunes is not touched."""
    services = "/api/v1/namespaces/demo/services"
    kept = {"annotations": dict(UNPRUNED)}
    for path, labels, more in (
        (f"{GROUPS}/prefill-1", {"tidemill.dev/unit": "prefill-1"}, kept),
        (f"{services}/prefill-1", {"tidemill.dev/unit": "prefill-1"}, kept),
        (MAP_PATH, {}, kept),
        (f"{services}/others", {"tidemill.dev/plan": "others"}, kept),
        (f"{services}/gateway", {}, {}),
    ):
        metadata = {"name": path.rpartition("/")[2], "namespace": "demo", "labels": LABELS | labels} | more
        fake.store(path, {"metadata": metadata, "spec": {}})
    old = listed("prefill-0", controller=True)

    servicer.Delete(pb.DeleteRequest(id=occupants.ID, type=occupants.TOKEN, old_inputs=old, timeout=30), None)

    assert set(fake.objects) == {f"{services}/others", f"{services}/gateway"}


def test_a_plan_that_loses_its_controller_keeps_its_units(fake, servicer):
    """The list then deletes only what the controller would have deleted."""
    for unit in ("prefill-0", "prefill-1"):
        of_unit = controlled(unit)
        labels = LABELS | {"tidemill.dev/unit": unit}
        fake.store(
            f"{GROUPS}/{unit}",
            of_unit | {"metadata": of_unit["metadata"] | {"labels": labels, "annotations": dict(UNPRUNED)}},
        )

    relist(servicer, listed("prefill-0", controller=True), listed("prefill-0"))

    assert set(fake.objects) == {f"{GROUPS}/prefill-0"}


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
    kind, manifest = type_token("v1", "ConfigMap"), encode_struct(CONFIG_MAP)
    made = create(servicer, CONFIG_MAP)
    read = servicer.Read(pb.ReadRequest(id=made.id, type=kind, properties=made.properties, inputs=manifest), None)
    changes = [pb.UpdateRequest(type=kind, old_inputs=manifest, news=manifest, preview=each) for each in (True, False)]
    answers = [made, read, *(servicer.Update(each, None) for each in changes)]

    assert read.inputs == manifest
    for answer in answers:
        named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "demo"}}
        assert decode_struct(answer.properties) == named


def together(launch="settings", **service):
    """A unit as one resource."""
    file = CONFIG_MAP | {"metadata": CONFIG_MAP["metadata"] | {"name": launch}}
    metadata = {"name": "decode-0", "namespace": "demo", "labels": LABELS}
    spec = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service}
    return {"ConfigMap": file, "LeaderWorkerSet": group("decode-0"), "Service": spec}


@pytest.fixture
def unit(fake, servicer):
    """Such a one, which is there and ready."""
    servicer.Create(pb.CreateRequest(type=occupants.TOKEN, properties=listed("decode-0")), None)
    made = servicer.Create(pb.CreateRequest(type=OBJECTS, properties=encode_struct(together())), None)
    become_ready(fake, "decode-0")
    return made


def look(servicer, inputs):
    """What a refresh makes of it."""
    request = pb.ReadRequest(id="x", type=OBJECTS, properties=encode_struct({}), inputs=encode_struct(inputs))
    return servicer.Read(request, None)


def compare(servicer, old, new):
    """Path -> kind of change, and which properties need another resource."""
    diff = servicer.Diff(pb.DiffRequest(type=OBJECTS, old_inputs=encode_struct(old), news=encode_struct(new)), None)
    kinds = {path: pb.PropertyDiff.Kind.Name(each.kind) for path, each in diff.detailedDiff.items()}
    return kinds, list(diff.replaces)


def test_a_unit_is_one_resource(fake, servicer, unit):
    """Named by its group, with each manifest once; a new one is not awaited, and is there in order."""
    read = look(servicer, together())

    assert (unit.id, read.id) == ("leaderworkerset.x-k8s.io/v1/LeaderWorkerSet/demo/decode-0",) * 2
    assert read.inputs == encode_struct(together())
    assert list(decode_struct(unit.properties)) == list(decode_struct(read.properties)) == ["LeaderWorkerSet"]
    assert unit.refresh_before_update
    assert read.refresh_before_update
    assert [path for verb, path in fake.requests if verb == "PATCH"][-1] == f"{GROUPS}/decode-0"


def test_an_object_of_a_unit_that_somebody_deleted_is_named(fake, servicer, unit):
    """Its key names it, and it is made again; the unit is gone only when all are."""
    del fake.objects["/api/v1/namespaces/demo/services/decode-0"]
    found = decode_struct(look(servicer, together()).inputs)

    assert compare(servicer, found, together()) == ({"Service": "ADD"}, [])
    request = pb.UpdateRequest(
        type=OBJECTS, old_inputs=encode_struct(found), news=encode_struct(together()), timeout=30
    )
    servicer.Update(request, None)
    assert "/api/v1/namespaces/demo/services/decode-0" in fake.objects

    fake.objects.clear()
    assert look(servicer, together()).id == ""


def test_a_change_in_a_unit_is_named_by_object_and_path(fake, servicer, unit):
    """What is made anew by itself is warned of, and does not replace the unit; another group does."""
    other = together("settings-2", clusterIP="None")
    fake.refused["/api/v1/namespaces/demo/services/decode-0"] = (422, "spec.clusterIP: field is immutable")
    moved = together()
    moved["LeaderWorkerSet"]["metadata"] = moved["LeaderWorkerSet"]["metadata"] | {"namespace": "elsewhere"}

    named = {"ConfigMap.metadata.name": "UPDATE", "Service.spec.clusterIP": "ADD"}
    assert compare(servicer, together(), other) == (named, [])
    assert servicer.engine.warnings == [
        "Service demo/decode-0 is deleted and created again, since spec.clusterIP cannot be changed"
    ]
    assert compare(servicer, together(), together()) == ({}, [])
    whole = {"LeaderWorkerSet.metadata.namespace": "UPDATE_REPLACE"}
    assert compare(servicer, together(), moved) == (whole, ["LeaderWorkerSet"])
    fake.refused[f"{GROUPS}/decode-0"] = (422, "spec.x: field is immutable")
    other = together() | {"LeaderWorkerSet": group("decode-0") | {"spec": {"x": 1}}}
    assert compare(servicer, together(), other) == ({"LeaderWorkerSet.spec.x": "ADD_REPLACE"}, ["LeaderWorkerSet"])


def test_what_a_half_made_unit_has_is_in_the_state(fake, servicer):
    """With the reason; the next run makes the rest, and `destroy` finds what is there."""
    fake.forbidden[f"{GROUPS}/decode-0"] = "no"
    request = pb.CreateRequest(type=OBJECTS, properties=encode_struct(together()))

    with pytest.raises(InitFailed, match="LeaderWorkerSet demo/decode-0") as error:
        servicer.Create.__wrapped__(servicer, request)

    assert list(decode_struct(error.value.detail.inputs)) == ["ConfigMap", "Service"]
    assert error.value.detail.id == "v1/Service/demo/decode-0"


def test_objects_that_a_unit_has_taken_over_stay(fake, servicer, unit):
    """A state of before has each as a resource, which Pulumi deletes: also in a run that only finds the unit."""
    later = Servicer(SilentEngine())
    later.Configure(pb.ConfigureRequest(), None)
    later.Check(pb.CheckRequest(type=OBJECTS, news=encode_struct(together())), None)

    for each in together().values():
        delete(later, each)

    assert len(fake.objects) == 3
    request = pb.DeleteRequest(type=OBJECTS, old_inputs=encode_struct(together()), timeout=30)
    later.Delete(request, None)
    assert fake.objects == {}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "there must be at least one manifest"),
        ({"Service": "x"}, "Service must be a manifest: it is no map"),
        (
            {"Service": {"kind": "Service", "metadata": {"name": "a"}}},
            "Service must be a manifest: apiVersion is missing",
        ),
        ({"Service": {"apiVersion": "v1", "kind": "Service"}}, "Service must be a manifest: metadata.name is missing"),
    ],
)
def test_several_that_are_no_objects_are_refused(servicer, values, reason):
    """With what they should be."""
    (failure,) = servicer.Check(pb.CheckRequest(type=OBJECTS, news=encode_struct(values)), None).failures

    assert failure.reason == reason


def test_a_cluster_that_is_not_known_yet_is_warned_of(servicer):
    """A preview that says nothing would look as if the cluster had been asked."""
    servicer.CheckConfig(pb.CheckRequest(news=encode_struct({"kubeconfig": UNKNOWN, "kinds": ["v1/Pod"]})), None)

    assert servicer.engine.warnings == [
        "the cluster is not known before `up`, so nothing was checked against it: whether it answers and serves what "
        "the plan needs, each manifest, and what is there already"
    ]


def test_secrets_are_marked_in_what_is_found(fake, servicer):
    """The engine writes it into the state, and knows of no secret that we do not mark."""
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "1"}
    given = json_format.ParseDict(CONFIG_MAP | {"data": {"a": secret}}, Struct())
    fake.store(MAP_PATH, CONFIG_MAP)
    read = servicer.Read(pb.ReadRequest(id="x", type=type_token("v1", "ConfigMap"), inputs=given), None)

    assert json_format.MessageToDict(read.inputs)["data"] == {"a": secret}


def test_what_a_unit_adopts_is_warned_of_once(fake, servicer):
    """The warning names the manager whose object it was, since that tool would set it back."""
    for path, each in ((MAP_PATH, together()["ConfigMap"]), (SERVICE_PATH, together()["Service"])):
        fake.store(path, each, manager="kubectl")
    servicer.Configure(pb.ConfigureRequest(args=encode_struct({"adopt": True})), None)
    servicer.Create(pb.CreateRequest(type=occupants.TOKEN, properties=listed("decode-0")), None)

    servicer.Create(pb.CreateRequest(type=OBJECTS, properties=encode_struct(together())), None)

    assert servicer.engine.warnings == ["2 objects taken over from kubectl, which must not apply the plan any more"]

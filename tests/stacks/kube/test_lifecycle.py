"""One object's life against a fake API server, which goes wrong at a chosen moment. Real ones: `tests/cluster`."""

import threading
import time

import pytest

from planner.facts.names import UNPRUNED
from stacks.kube import lifecycle
from stacks.kube.connection import Connection
from stacks.kube.errors import ForeignError, NotReadyError, OtherPlanError, RefusedError, SharedError
from stacks.kube.waiting import Patience
from tests.stacks.kube.fake_api import hang, running_fake_api

LONG_S = 60
SOON_S = 20  # for what must not take LONG_S
MAP_PATH = "/api/v1/namespaces/demo/configmaps/settings"
UNIT_PATH = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/demo/leaderworkersets/unit"
SPACE_PATH = "/api/v1/namespaces/demo"


def metadata(name, plan, namespace="demo"):
    """With the plan's label, if there is a plan."""
    labels = {"labels": {"tidemill.dev/plan": plan}} if plan else {}
    return {"name": name, "namespace": namespace} | labels


def config_map(plan="demo", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("settings", plan), "data": data}


def space(plan="demo"):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata("demo", plan, namespace="")}


def unit(**spec):
    """A group that no controller has seen."""
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return kind | {"metadata": metadata("unit", "demo"), "spec": spec}


def patience(timeout_s=LONG_S, said=None):
    return Patience(timeout_s, threading.Event(), (said if said is not None else []).append)


@pytest.fixture
def server():
    """(fake, api)."""
    with running_fake_api() as both:
        yield both


@pytest.fixture
def impatient(monkeypatch):
    """A client that gives up soon."""
    monkeypatch.setitem(Connection.request.__kwdefaults__, "answer_timeout_s", 0.3)


def vanish(path):
    """Somebody deletes it."""
    return lambda fake: fake.objects.pop(path)


def made_anew(path, manifest, manager="tidemill"):
    """Somebody deletes it and makes another one."""

    def happen(fake):
        fake.objects.pop(path, None)
        fake.store(path, manifest, manager)

    return happen


def verbs(fake):
    """What was asked, reads left out."""
    return [verb for verb, _ in fake.requests if verb != "GET"]


def test_an_object_whose_answer_is_lost_belongs_into_the_state(server, impatient):
    """The server stored it and never said so: NotReadyError, which keeps it where `destroy` finds it."""
    fake, api = server
    fake.after["PATCH"] = [hang(1)]

    with pytest.raises(NotReadyError, match="whether ConfigMap demo/settings was stored is not known; repeat: "):
        lifecycle.create(api, config_map(a="1"), patience())

    assert MAP_PATH in fake.objects
    lifecycle.create(api, config_map(a="1"), patience())  # what the next `up` does
    lifecycle.delete(api, config_map(a="1"), patience())
    assert fake.objects == {}


def test_an_object_that_the_server_refused_was_not_made(server):
    """Only an answer that never came leaves a doubt."""
    fake, api = server
    fake.store(MAP_PATH, config_map(a="1"))
    fake.before["PATCH"] = [made_anew(MAP_PATH, config_map(a="1"))]

    with pytest.raises(RefusedError, match="somebody deleted it, or made it anew, at this very moment; repeat"):
        lifecycle.create(api, config_map(a="2"), patience())


@pytest.mark.parametrize("happen", [vanish(UNIT_PATH), made_anew(UNIT_PATH, unit())])
def test_an_object_that_vanishes_while_it_is_awaited_ends_the_wait(server, happen):
    """Nobody waits the whole deadline for what is not there, or for another one of that name."""
    fake, api = server
    lifecycle_began = time.monotonic()
    fake.store(UNIT_PATH, unit())
    fake.before["GET"] = [lambda fake: None, lambda fake: None, happen]

    with pytest.raises(NotReadyError, match="LeaderWorkerSet demo/unit was deleted by somebody"):
        lifecycle.update(api, unit(), unit(), patience())

    assert time.monotonic() - lifecycle_began < SOON_S


def test_an_update_of_an_object_that_is_gone_makes_it_again(server):
    """A refresh may be older than the deletion."""
    fake, api = server

    lifecycle.update(api, config_map(a="1"), config_map(a="2"), patience())

    assert fake.objects[MAP_PATH]["data"] == {"a": "2"}


def test_a_deletion_never_takes_what_was_made_since(server):
    """Between the look and the request somebody made it anew: the new one stays, and ours is gone."""
    fake, api = server
    fake.store(MAP_PATH, config_map(a="1"))
    fake.before["DELETE"] = [made_anew(MAP_PATH, config_map(a="2"))]

    lifecycle.delete(api, config_map(a="1"), patience())

    assert fake.objects[MAP_PATH]["data"] == {"a": "2"}


@pytest.mark.parametrize(
    ("annotations", "mounted", "is_kept"),
    [(UNPRUNED, "settings", True), (UNPRUNED, "others", False), ({}, "settings", False)],
)
def test_a_launch_file_stays_that_a_pod_still_mounts(server, annotations, mounted, is_kept):
    """A unit that waits for its turn makes its pods anew with it; the controller deletes it once nobody needs it."""
    fake, api = server
    launch = config_map()
    launch["metadata"] = launch["metadata"] | {"annotations": dict(annotations)}
    fake.store(MAP_PATH, launch)
    volumes = [{"name": "launch", "projected": {"sources": [{"configMap": {"name": mounted}}]}}]
    pod = {"metadata": metadata("decode-0", "demo"), "spec": {"containers": [], "volumes": volumes}}
    fake.store("/api/v1/namespaces/demo/pods/decode-0", {"apiVersion": "v1", "kind": "Pod"} | pod)

    lifecycle.delete(api, launch, patience())

    assert (MAP_PATH in fake.objects) is is_kept


def test_a_replacement_keeps_what_it_has_just_made(server):
    """Pulumi makes the new one first: under the same name that is the old one, and its deletion would take both."""
    fake, api = server
    fake.store(MAP_PATH, config_map(a="1"))

    made = lifecycle.create(api, config_map(a="1"), patience())
    lifecycle.delete(api, config_map(a="1"), patience(), kept_uids={made.uid})

    assert fake.objects[MAP_PATH]["metadata"]["uid"] == made.uid
    assert "DELETE" not in verbs(fake)


@pytest.mark.parametrize(("spec", "scaled", "is_off"), [({}, {"replicas": 0}, True), ({"replicas": 0}, {}, False)])
def test_a_unit_that_somebody_scaled_to_nothing_is_off(server, spec, scaled, is_off):
    """There is nothing to wait for, and nothing serves: whoever asked for the unit is told."""
    fake, api = server
    fake.store(UNIT_PATH, unit(**spec, **scaled))
    fake.after["PATCH"] = [lambda fake: fake.objects[UNIT_PATH]["spec"].update(scaled)]

    assert lifecycle.update(api, unit(**spec), unit(**spec), patience()).is_off is is_off


@pytest.mark.parametrize(
    ("manifest", "path", "advice"),
    [
        (space(), SPACE_PATH, "set kubernetes.create_namespace: false to share it, or choose another"),
        (config_map(a="1"), MAP_PATH, "choose another kubernetes.namespace, or another name for one of the plans"),
    ],
)
def test_an_object_of_another_plan_is_refused_and_left_alone(server, manifest, path, advice):
    """By whatever would change it, in a preview too; a look finds that ours is gone, and `destroy` passes it by."""
    fake, api = server
    other = manifest | {"metadata": manifest["metadata"] | {"labels": {"tidemill.dev/plan": "other"}}}
    fake.store(path, other)

    for change in (
        lambda: lifecycle.foresee_create(api, manifest),
        lambda: lifecycle.create(api, manifest, patience()),
        lambda: lifecycle.foresee_update(api, manifest, manifest),
        lambda: lifecycle.update(api, manifest, manifest, patience()),
    ):
        with pytest.raises(OtherPlanError, match=f"belongs to the plan other; {advice}"):
            change()
    assert lifecycle.read(api, manifest) is None
    lifecycle.delete(api, manifest, patience())
    assert verbs(fake) == []


def test_an_object_of_nobody_s_plan_is_refused_too(server):
    """Here another program made one of that name after ours was deleted."""
    fake, api = server
    fake.store(MAP_PATH, config_map(plan=None, a="1"), manager="someone")

    with pytest.raises(ForeignError, match="its fields are managed by: someone"):
        lifecycle.update(api, config_map(a="1"), config_map(a="2"), patience())
    assert lifecycle.read(api, config_map(a="1")) is None
    lifecycle.delete(api, config_map(a="1"), patience())
    assert verbs(fake) == []


@pytest.mark.parametrize("plan", ["demo", None])
def test_an_object_of_the_state_stays_ours_whoever_has_edited_it(server, plan):
    """Another program may own every field; a lost state takes up nothing in which we own none."""
    fake, api = server
    fake.store(MAP_PATH, config_map(plan, a="9"), manager="kubectl-edit")

    with pytest.raises(ForeignError, match="its fields are managed by: kubectl-edit"):
        lifecycle.create(api, config_map(plan, a="1"), patience())
    assert lifecycle.read(api, config_map(plan, a="1")) is not None
    lifecycle.update(api, config_map(plan, a="1"), config_map(plan, a="1"), patience())
    assert fake.objects[MAP_PATH]["data"] == {"a": "1"}
    fake.store(MAP_PATH, config_map(plan, a="9"), manager="kubectl-edit")
    lifecycle.delete(api, config_map(plan, a="1"), patience())

    assert fake.objects == {}


def test_a_plan_may_be_renamed_and_a_label_taken_away(server):
    """The state knows under which name the object was made; without the label, its field manager decides."""
    fake, api = server
    fake.store(SPACE_PATH, space("old"))

    lifecycle.update(api, space("old"), space("new"), patience())
    fake.objects[SPACE_PATH]["metadata"].pop("labels")
    lifecycle.update(api, space("new"), space("new"), patience())

    assert fake.objects[SPACE_PATH]["metadata"]["labels"] == {"tidemill.dev/plan": "new"}


def test_a_namespace_goes_last(server):
    """With objects of another plan in it, it stays, and the error says whose they are."""
    fake, api = server
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("other-runtime", "other")}
    fake.store(SPACE_PATH, space())
    fake.store(f"{SPACE_PATH}/serviceaccounts/other-runtime", account)

    with pytest.raises(SharedError, match="has objects of the plan other in it, which would go with it; destroy those"):
        lifecycle.delete(api, space(), patience())
    assert SPACE_PATH in fake.objects

    fake.objects.pop(f"{SPACE_PATH}/serviceaccounts/other-runtime")
    lifecycle.delete(api, space(), patience())
    assert fake.objects == {}


def test_a_silent_webhook_is_foreseen_before_the_namespace_is_there(server):
    """The manifest is tried in another namespace then, and whoever does not answer there will not answer here."""
    fake, api = server
    silent = 'Internal error occurred: failed calling webhook "m.lws.io": failed to call webhook: connection refused'
    fake.refused[UNIT_PATH] = (404, 'namespaces "demo" not found')
    fake.refused[UNIT_PATH.replace("demo", "default")] = (500, silent)

    with pytest.raises(RefusedError, match=r"m\.lws\.io does not answer") as caught:
        lifecycle.foresee_create(api, unit())
    assert caught.value.silent_webhook == "m.lws.io"


POD_PATH = "/api/v1/namespaces/demo/pods/tidemill-doctor"
REQUIRED = "Pod is invalid: spec.containers[0].image: Required value"


@pytest.mark.parametrize(
    ("refused", "is_foreseen"),
    [
        ({POD_PATH: (422, REQUIRED)}, True),
        ({POD_PATH: (403, "exceeded quota: all")}, False),
        ({POD_PATH: (404, 'namespaces "demo" not found')}, False),
        (
            {
                POD_PATH: (404, 'namespaces "demo" not found'),
                POD_PATH.replace("demo", "default"): (422, REQUIRED),
            },
            True,
        ),
    ],
)
def test_a_pod_that_no_namespace_takes_is_foreseen(server, refused, is_foreseen):
    """A custom kind's server lets any template pass; quotas and the like may be others when its controller acts."""
    fake, api = server
    fake.refused |= refused
    group = unit(leaderWorkerTemplate={"workerTemplate": {"spec": {"containers": [{"name": "a"}]}}})

    if is_foreseen:
        with pytest.raises(RefusedError, match="pods of LeaderWorkerSet demo/unit: the API server finds it invalid"):
            lifecycle.check_template_pods(api, group)
    else:
        lifecycle.check_template_pods(api, group)
    lifecycle.check_template_pods(api, group | {"apiVersion": "apps/v1", "kind": "StatefulSet"})
    lifecycle.check_template_pods(api, config_map(a="1"))


def test_several_go_at_once(server):
    """The one that cannot is said, and keeps no other from going."""
    fake, api = server
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("other-runtime", "other")}
    fake.store(SPACE_PATH, space())
    fake.store(f"{SPACE_PATH}/serviceaccounts/other-runtime", account)
    fake.store(MAP_PATH, config_map(a="1"))

    with pytest.raises(SharedError):
        lifecycle.delete_all(api, [space(), config_map(a="1")], patience())

    assert MAP_PATH not in fake.objects


@pytest.mark.parametrize("plan", ["demo", "other", None])
def test_only_objects_of_the_plan_are_adopted(server, plan):
    """The label says that its rendered folder was applied, by kubectl or from Git; others are refused as ever."""
    fake, api = server
    fake.store(MAP_PATH, config_map(plan, a="9"), manager="kubectl")
    manifest = config_map(a="1")

    if plan == "demo":
        with pytest.raises(ForeignError, match=r"managed by: kubectl\); set adopt: true to take it over"):
            lifecycle.create(api, manifest, patience())
        lifecycle.foresee_create(api, manifest, adopts=True)
        assert lifecycle.create(api, manifest, patience(), adopts=True).adopted_from == ("kubectl",)
        assert fake.objects[MAP_PATH]["data"] == {"a": "1"}
        assert lifecycle.create(api, manifest, patience(), adopts=True).adopted_from == ()
        return
    for change in (
        lambda: lifecycle.foresee_create(api, manifest, adopts=True),
        lambda: lifecycle.create(api, manifest, patience(), adopts=True),
    ):
        with pytest.raises((ForeignError, OtherPlanError)) as error:
            change()
        assert "adopt" not in str(error.value)

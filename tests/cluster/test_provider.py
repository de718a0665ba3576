"""The provider under Pulumi's real engine, against a real API server with its controllers and no node."""

import base64
import copy
import json
import signal

import pytest
import yaml
from kubernetes.client import ApiException, AppsV1Api, CoreV1Api, CustomObjectsApi

from tests.cluster.certificates import Authority
from tests.cluster.deployed import listing
from tests.cluster.products import PULUMI
from tests.cluster.pulumi import Pulumi

KINDS = ["v1/Namespace", "v1/ConfigMap", "apps/v1/Deployment", "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet"]
LWS = {"group": "leaderworkerset.x-k8s.io", "version": "v1", "plural": "leaderworkersets"}
CONTAINER = {"name": "rank", "image": "example.org/rank:1"}


def namespace(name, **labels):
    metadata = {"name": name, "labels": {"app.kubernetes.io/managed-by": "tidemill", **labels}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def config_map(where, **data):
    metadata = {"name": "settings", "namespace": where}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def deployment(where, **spec):
    """Without `replicas` it wants one pod, which no node can run here."""
    template = {"metadata": {"labels": {"app": "gateway"}}, "spec": {"containers": [copy.deepcopy(CONTAINER)]}}
    spec = {"selector": {"matchLabels": {"app": "gateway"}}, "template": template} | spec
    metadata = {"name": "gateway", "namespace": where}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def unit(where):
    """Nothing acts on LeaderWorkerSets here."""
    template = {"size": 2, "workerTemplate": {"spec": {"containers": [copy.deepcopy(CONTAINER)]}}}
    metadata = {"name": "unit", "namespace": where}
    spec = {"leaderWorkerTemplate": template}
    return {"apiVersion": f"{LWS['group']}/v1", "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def new_stack(control_plane, toolchain, tmp_path_factory):
    """Makes a stack of given manifests, not up yet."""
    (executable,) = toolchain(PULUMI)

    def make(*manifests, **options):
        stack = Pulumi.of_manifests(executable, tmp_path_factory.mktemp("stack"), control_plane.kubeconfig)
        stack.set_manifests(*manifests, **options)
        return stack

    return make


@pytest.fixture(scope="module")
def core(control_plane):
    """The administrator's client."""
    return CoreV1Api(control_plane.api)


@pytest.fixture(scope="module")
def up(new_stack):
    """A stack that is up: a namespace, a ConfigMap, a Deployment of no pods. Whoever changes it changes it back."""
    manifests = [namespace("up"), config_map("up", a="1", b="2"), deployment("up", replicas=0)]
    stack = new_stack(*manifests, kinds=KINDS)
    done = stack.up()
    assert done.status == 0, done.output
    return stack, manifests


def test_a_preview_stores_nothing(new_stack, core):
    """It foresees every object, also those whose namespace comes in the same run."""
    foreseen = new_stack(namespace("foreseen"), config_map("foreseen", a="1"), unit("foreseen")).preview()

    assert foreseen.status == 0
    assert {"foreseen": "create", "settings": "create", "unit": "create"}.items() <= foreseen.steps.items()
    assert "foreseen" not in {each.metadata.name for each in core.list_namespace().items}


def test_a_mistake_is_foreseen_before_its_namespace_is_there(new_stack):
    """The server judges the manifest in another namespace."""
    wrong = unit("nowhere-yet")
    wrong["spec"]["leaderWorkerTemplate"]["sizze"] = 2

    foreseen = new_stack(namespace("nowhere-yet"), wrong).preview()

    assert foreseen.errors == [
        "LeaderWorkerSet nowhere-yet/unit: the API server finds it invalid "
        "(.spec.leaderWorkerTemplate.sizze: field not declared in schema); "
        "correct kubernetes.overlay, or the field that writes it"
    ]


def test_right_after_up_there_is_nothing_to_do(up):
    """Also after looking at the cluster."""
    stack, _ = up

    foreseen = stack.preview("--refresh", "--expect-no-changes")

    assert (foreseen.status, foreseen.steps) == (0, {})


def test_a_hand_edit_is_named_and_undone(up, core):
    """Exactly the path, by a plain `preview`, and by a plain `up`."""
    stack, _ = up
    core.patch_namespaced_config_map("settings", "up", {"data": {"a": "9"}}, field_manager="kubectl-edit")

    foreseen = stack.preview("--expect-no-changes")
    assert foreseen.status != 0
    assert foreseen.changes == {"settings": {"data.a": "update"}}

    done = stack.up()
    assert done.status == 0, done.output
    assert core.read_namespaced_config_map("settings", "up").data == {"a": "1", "b": "2"}


def test_a_deleted_object_is_made_again(up, core):
    """Someone deleted it by hand."""
    stack, _ = up
    core.delete_namespaced_config_map("settings", "up")

    assert stack.preview().steps == {"settings": "create"}
    assert stack.up().status == 0
    assert core.read_namespaced_config_map("settings", "up").data == {"a": "1", "b": "2"}


def test_a_changed_input_is_named_and_made(up, core):
    """Exactly the paths, and a key that the manifest no longer has is gone from the object."""
    stack, (space, _, workload) = up
    stack.set_manifests(space, config_map("up", a="3", c="4"), workload, kinds=KINDS)

    assert stack.preview().changes == {"settings": {"data.a": "update", "data.b": "delete", "data.c": "add"}}
    assert stack.up().status == 0
    assert core.read_namespaced_config_map("settings", "up").data == {"a": "3", "c": "4"}

    stack.set_manifests(*up[1], kinds=KINDS)
    assert stack.up().status == 0


def test_a_field_that_cannot_change_replaces_its_object(up, control_plane):
    """The preview says so and names it; the old object goes first, since the name stays."""
    stack, (space, settings, _) = up
    other = deployment("up", replicas=0, selector={"matchLabels": {"app": "other"}})
    other["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    before = AppsV1Api(control_plane.api).read_namespaced_deployment("gateway", "up").metadata.uid
    stack.set_manifests(space, settings, other, kinds=KINDS)

    foreseen = stack.preview()
    assert foreseen.steps == {"gateway": "replace"}
    assert foreseen.changes["gateway"]["spec.selector.matchLabels.app"] == "update-replace"

    done = stack.up()
    assert done.status == 0, done.output
    after = AppsV1Api(control_plane.api).read_namespaced_deployment("gateway", "up")
    assert after.metadata.uid != before
    assert after.spec.selector.match_labels == {"app": "other"}

    stack.set_manifests(*up[1], kinds=KINDS)
    assert stack.up().status == 0


def test_several_objects_are_one_resource(new_stack, core, control_plane):
    """A hand edit is named by object and path, a renamed file goes, and the rest stays until it cannot change."""
    space, workload = namespace("several"), deployment("several", replicas=0)
    stack = new_stack(space, config_map("several", a="1"), workload, kinds=KINDS, together=True)
    assert stack.up().status == 0
    assert stack.preview("--refresh", "--expect-no-changes").status == 0
    before = AppsV1Api(control_plane.api).read_namespaced_deployment("gateway", "several").metadata

    core.patch_namespaced_config_map("settings", "several", {"data": {"a": "9"}}, field_manager="kubectl-edit")
    assert stack.preview().changes == {"together": {"ConfigMap.data.a": "update"}}

    other, renamed = deployment("several", replicas=0, paused=True), config_map("several", a="2")
    renamed["metadata"]["name"] = "settings-2"
    stack.set_manifests(space, renamed, other, kinds=KINDS, together=True)
    named = {"ConfigMap.metadata.name": "update", "ConfigMap.data.a": "update"}
    assert stack.preview().changes == {"together": named | {"Deployment.spec.paused": "add"}}
    assert stack.up().status == 0
    maps = {each.metadata.name: each.data for each in core.list_namespaced_config_map("several").items}
    assert (maps["settings-2"], "settings" in maps) == ({"a": "2"}, False)
    same = AppsV1Api(control_plane.api).read_namespaced_deployment("gateway", "several").metadata
    assert same.uid == before.uid

    other["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    other["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    stack.set_manifests(space, renamed, other, kinds=KINDS, together=True)
    preview = stack.preview()
    assert preview.steps == {"together": "replace"}
    assert preview.changes["together"]["Deployment.spec.selector.matchLabels.app"] == "update-replace"
    assert stack.up().status == 0
    assert AppsV1Api(control_plane.api).read_namespaced_deployment("gateway", "several").metadata.uid != before.uid


def test_a_state_of_single_objects_becomes_one_of_several(new_stack, core, control_plane):
    """As a stack of before is taken over: nothing is deleted, made anew or changed, and nothing is left to do."""
    manifests = [namespace("before"), config_map("before", a="1"), deployment("before", replicas=0)]
    stack = new_stack(*manifests, kinds=KINDS)
    assert stack.up().status == 0

    def there():
        maps = core.read_namespaced_config_map("settings", "before")
        workload = AppsV1Api(control_plane.api).read_namespaced_deployment("gateway", "before")
        return [(each.metadata.uid, each.metadata.generation) for each in (maps, workload)]

    before = there()
    stack.set_manifests(*manifests, kinds=KINDS, together=True)
    assert stack.preview().steps == {"gateway": "delete", "settings": "delete", "together": "create"}
    done = stack.up()

    assert done.status == 0, done.output
    assert there() == before
    assert {each["id"] for each in stack.resources()} == {"v1/Namespace//before", "apps/v1/Deployment/before/gateway"}
    assert stack.preview("--expect-no-changes").status == 0
    assert stack.destroy().status == 0
    assert list(stack.resources()) == []


def test_a_replacement_by_hand_leaves_a_new_object(up, core):
    """`up --replace` deletes the old one first: two of one name cannot be."""
    stack, _ = up
    (urn,) = (each["urn"] for each in stack.resources() if each["id"] == "v1/ConfigMap/up/settings")
    before = core.read_namespaced_config_map("settings", "up")

    done = stack.up("--replace", urn)

    assert done.status == 0, done.output
    after = core.read_namespaced_config_map("settings", "up")
    assert (after.data, after.metadata.uid != before.metadata.uid) == (before.data, True)


def test_two_plans_do_not_share_a_namespace_by_accident(new_stack, core):
    """The second one is refused, in a preview and in `up`, and neither its `destroy` nor a half-made state ends it."""
    first = new_stack(namespace("shared", **{"tidemill.dev/plan": "first"}))
    assert first.up().status == 0
    second = new_stack(namespace("shared", **{"tidemill.dev/plan": "second"}))
    sentence = (
        "Namespace shared belongs to the plan first; set kubernetes.create_namespace: false to share it, "
        "or choose another kubernetes.namespace"
    )

    assert second.preview().errors == [sentence]
    assert second.up().errors == [sentence]
    assert second.destroy().status == 0
    assert core.read_namespace("shared").metadata.labels["tidemill.dev/plan"] == "first"

    account = {"metadata": {"name": "second-runtime", "labels": {"tidemill.dev/plan": "second"}}}
    core.create_namespaced_service_account("shared", account)
    assert first.destroy().errors == [
        "Namespace shared has objects of the plan second in it, which would go with it; destroy those first"
    ]
    core.delete_namespaced_service_account("second-runtime", "shared")
    assert first.destroy().status == 0


def test_a_lost_state_finds_its_objects_again(up, new_stack):
    """What is ours is taken up as it is."""
    _, manifests = up

    done = new_stack(*manifests).up()

    assert done.status == 0, done.output


def test_another_s_object_is_refused_and_left_alone(new_stack, core):
    """Never silently taken over: the error says whose it is."""
    foreign = {"metadata": {"name": "settings", "namespace": "default"}, "data": {"theirs": "x"}}
    core.create_namespaced_config_map("default", foreign, field_manager="someone")
    stack = new_stack(config_map("default", a="1"))
    sentence = (
        "ConfigMap default/settings exists already and is not Tidemill's (its fields are managed by: someone); "
        "delete it, or give this one another name: Tidemill never takes over what it did not create"
    )

    assert stack.preview().errors == [sentence]
    assert stack.up().errors == [sentence]
    assert core.read_namespaced_config_map("settings", "default").data == {"theirs": "x"}

    core.delete_namespaced_config_map("settings", "default")


def test_what_never_becomes_ready_is_kept_and_destroyed(new_stack, control_plane):
    """It is in the state with its reason, `up` waits for it again, and `destroy` leaves the cluster as it was."""
    before = listing(control_plane.api)
    stack = new_stack(namespace("broken"), deployment("broken"), create="8s", update="2s")

    (reason, why) = stack.up().errors
    assert reason == "Deployment broken/gateway is not ready after 8 s: 0 of 1 pods available"
    assert why.startswith("not yet seen by the scheduler (pod gateway-")
    assert {each["id"]: each.get("initErrors") for each in stack.resources()} == {
        "v1/Namespace//broken": None,
        "apps/v1/Deployment/broken/gateway": [reason, why],
    }
    assert stack.preview().steps == {"gateway": "update"}
    assert stack.up().errors[0] == reason.replace("after 8 s", "after 2 s")

    done = stack.destroy()
    assert done.status == 0, done.output
    assert listing(control_plane.api) == before


def test_what_became_ready_late_is_forgiven(new_stack, control_plane):
    """The next `up` sees that it is ready; then there is nothing left to do."""
    custom = CustomObjectsApi(control_plane.api)
    stack = new_stack(namespace("late"), unit("late"), create="1s")
    assert stack.up().errors == [
        "LeaderWorkerSet late/unit is not ready after 1 s: not yet seen by its controller",
        "nothing has acted on it; check that the controller of LeaderWorkerSets runs",
    ]

    available = {
        "type": "Available",
        "status": "True",
        "reason": "x",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {
        "observedGeneration": 1,
        "replicas": 1,
        "readyReplicas": 1,
        "updatedReplicas": 1,
        "conditions": [available],
    }
    custom.patch_namespaced_custom_object_status(**LWS, namespace="late", name="unit", body={"status": status})

    assert stack.up().status == 0
    assert all("initErrors" not in each for each in stack.resources())
    assert stack.preview("--expect-no-changes").status == 0


def test_ctrl_c_ends_the_wait_and_keeps_what_was_made(new_stack):
    """In the state, where `destroy` finds it."""
    stack = new_stack(namespace("interrupted"), deployment("interrupted"))
    process = stack.start("up", "--yes", "--skip-preview")
    output = next(line for line in process.stdout if "0 of 1 pods available" in line)

    process.send_signal(signal.SIGINT)
    output += process.communicate(timeout=60)[0]

    assert "Deployment interrupted/gateway is not ready when cancelled: 0 of 1 pods available" in output
    assert "apps/v1/Deployment/interrupted/gateway" in {each["id"] for each in stack.resources()}


def test_a_secret_stays_one(new_stack, core):
    """It is in the cluster, in no state, and drift of it is found all the same."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "token", "namespace": "default"},
        "data": {"token": base64.b64encode(b"hidden").decode()},
    }
    stack = new_stack(secret, secrets=["token"])
    assert stack.up().status == 0
    assert core.read_namespaced_secret("token", "default").data == secret["data"]

    core.patch_namespaced_secret("token", "default", {"data": {"token": "b3RoZXI="}}, field_manager="kubectl-edit")
    assert stack.preview().changes == {"token": {"data.token": "update"}}
    assert stack.up().status == 0
    assert core.read_namespaced_secret("token", "default").data == secret["data"]

    states = [path.read_text() for path in (stack.home / "state").rglob("*.json")]
    assert states
    assert not any(secret["data"]["token"] in text or "b3RoZXI=" in text for text in states)


def wrong_kubeconfigs(control_plane, folder):
    """What can be wrong with the way to the cluster -> (kubeconfig, the whole error)."""
    server = control_plane.address.server
    good = yaml.safe_load(control_plane.kubeconfig.read_text())

    stranger = Authority(folder)

    def variant(name, cluster=None, user=None):
        document = copy.deepcopy(good)
        document["clusters"][0]["cluster"] |= cluster or {}
        document["users"][0]["user"] = user or document["users"][0]["user"]
        path = folder / name
        path.write_text(json.dumps(document))
        return path

    return {
        "not there": (
            "/nonexistent",
            "no usable current context in the kubeconfig that KUBECONFIG names (No configuration found); "
            "set KUBECONFIG to a valid file, and the context to one of `kubectl config get-contexts`",
        ),
        "nobody answers": (
            variant("nobody", cluster={"server": "https://127.0.0.1:1"}),
            "the API server at https://127.0.0.1:1 does not answer (connection refused); "
            "check that the cluster runs and can be reached from here, or choose another context",
        ),
        "another cluster's authority": (
            variant("authority", cluster={"certificate-authority": str(stranger.folder / "ca.crt")}),
            f"the certificate of the API server at {server} is not trusted (unable to get local issuer certificate); "
            "the kubeconfig's server and certificate-authority must be that cluster's",
        ),
        "refused credentials": (
            variant("refused", user={"token": "expired"}),
            f"cluster at {server}: the API server does not accept the kubeconfig's credentials (401 Unauthorized); "
            "renew them, or choose another context",
        ),
    }


@pytest.mark.parametrize("wrong", ["not there", "nobody answers", "another cluster's authority", "refused credentials"])
def test_a_cluster_that_cannot_be_used_is_one_error(new_stack, control_plane, tmp_path, wrong):
    """However many objects the stack has, and before any of them is touched."""
    kubeconfig, sentence = wrong_kubeconfigs(control_plane, tmp_path)[wrong]
    stack = new_stack(namespace("unused"), config_map("unused", a="1"), unit("unused"), kinds=KINDS)
    stack.kubeconfig = kubeconfig

    assert stack.preview().errors == [f"pulumi:providers:tidemill resource 'cluster' has a problem: {sentence}"]


def test_a_cluster_lost_after_up_is_said_once(up):
    """A look at every object would fail for the same reason."""
    stack, _ = up
    stack.environment["KUBECONFIG"] = "/nonexistent"

    errors = stack.up().errors

    del stack.environment["KUBECONFIG"]
    assert sum("no usable current context" in each for each in errors) == 1


def test_a_missing_kind_is_one_error_that_says_what_to_install(new_stack):
    """Every kind of the plan is looked for before the first object is made."""
    stack = new_stack(namespace("unused"), kinds=[*KINDS, "example.org/v1/Missing"])

    assert stack.preview().errors == [
        "pulumi:providers:tidemill resource 'cluster' has a problem: the cluster does not serve Missing of "
        "example.org/v1; install what defines it, or correct apiVersion and kind"
    ]


def test_a_user_without_rights_is_told_which(new_stack, control_plane):
    """Verb, resource and namespace."""
    user = control_plane.authority.issue_kubeconfig("nobody", control_plane.address.server, "nobody")
    stack = new_stack(config_map("default", a="1"), kinds=KINDS)
    stack.kubeconfig = user

    assert stack.preview().errors == [
        "ConfigMap default/settings: the kubeconfig's user nobody may not get configmaps in namespace default; "
        "bind a Role to it that allows get, create, patch and delete of them, or choose another context"
    ]


def test_destroy_leaves_nothing(up, control_plane, core):
    """The last test with this stack."""
    stack, _ = up

    done = stack.destroy()

    assert done.status == 0, done.output
    with pytest.raises(ApiException, match="404"):
        core.read_namespace("up")
    assert list(stack.resources()) == []

"""`tidemill doctor` on four real nodes: twelve planted faults are twelve findings, and where all is well there is none.

Then for a user without rights, on a control plane alone.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ConflictException

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.doctor.checks import findings
from stacks.doctor.findings import plural
from stacks.doctor.needs import read_needs
from stacks.doctor.reading import read_facts
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from tests.cluster.deployed import DEMO, listing, write_spec
from tests.stacks.controller.day_spec import day_plan
from tests.stacks.deployments import wait_until

NAMESPACE = "doctor"
BOUND_TIMEOUT_S = 30
GONE_TIMEOUT_S = 30
VERBS = ["get", "create", "patch", "delete"]
WEBHOOKS = "lws-mutating-webhook-configuration"
NODES = [{"name": name} for name in ("node-0", "node-1", "node-2", "node-8", "node-9")]


@pytest.fixture(scope="module")
def core(cluster):
    """The administrator's."""
    return client.CoreV1Api(cluster.api)


@pytest.fixture(scope="module")
def spec(cluster, core, tmp_path_factory):
    """The demo on three of the nodes, in a namespace of somebody else's that is there."""
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    wait_until(lambda: core.list_namespaced_config_map(NAMESPACE).items, BOUND_TIMEOUT_S)  # Kubernetes' certificate
    path = write_spec(tmp_path_factory.mktemp("doctor"), cluster, NAMESPACE)
    change(path, lambda document: document["kubernetes"].update(create_namespace=False))
    yield path
    core.delete_namespace(NAMESPACE)
    wait_until(lambda: NAMESPACE not in {each.metadata.name for each in core.list_namespace().items}, GONE_TIMEOUT_S)


def change(path, edit):
    """Edit a spec's file."""
    document = yaml.safe_load(path.read_text())
    edit(document)
    path.write_text(yaml.safe_dump(document))


def doctor(spec, kubeconfig, *flags):
    """The finished command, with JSON on stdout."""
    command = [str(Path(sys.executable).with_name("tidemill")), "doctor", str(spec), "--context", "test", *flags]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    return subprocess.run([*command, "--format", "json"], env=environment, capture_output=True, text=True, check=False)


def run_doctor(spec, kubeconfig):
    """Exit status; (check, object, blocks) of each finding; and how many there are."""
    done = doctor(spec, kubeconfig)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["findings"]
    return done.returncode, {(each["check"], each["object"], each["blocks"]) for each in found}, len(found)


def test_where_all_is_well_nothing_is_found_and_nothing_is_made(cluster, spec):
    """Every dry run, and every question about rights, leaves the cluster as it was."""
    before = listing(cluster.api)

    assert run_doctor(spec, cluster.kubeconfig) == (0, set(), 0)
    assert listing(cluster.api) == before


def test_twelve_faults_are_twelve_findings(cluster, core, spec, tmp_path):
    """Each is named once, by what it is about; those of spares do not block."""
    sick = tmp_path / "spec.yaml"
    sick.write_text(spec.read_text())
    change(sick, lambda document: document["cluster"].update(nodes=NODES, spares=["node-8", "node-9"]))
    change(sick, ask_for_more)
    before = listing(cluster.api)
    with ExitStack() as faults:
        for plant in FAULTS:
            faults.enter_context(plant(cluster, core))
        status, found, number = run_doctor(sick, cluster.kubeconfig)
    wait_until(lambda: listing(cluster.api) == before, GONE_TIMEOUT_S)

    assert status == 3
    assert found == {
        ("node", "Node node-0", True),
        ("taint", "Node node-1", True),
        ("occupied", "Node node-2", True),
        ("node", "Node node-8", False),
        ("node", "Node node-9", False),
        ("storage", f"PersistentVolumeClaim {NAMESPACE}/models", True),
        ("storage", f"PersistentVolumeClaim {NAMESPACE}/weights", True),
        ("secret", f"Secret {NAMESPACE}/login", True),
        ("quota", f"ResourceQuota {NAMESPACE}/team", True),
        ("pod-security", f"Namespace {NAMESPACE}", True),
        ("owner", f"ServiceAccount {NAMESPACE}/demo-runtime", True),
        ("webhook", "mleaderworkerset.kb.io", True),
    }
    assert number == len(found) == 12


def ask_for_more(document):
    """Two claims, and a Secret that nobody has made."""
    claims = [{"claim": name, "mount_path": f"/claims/{name}"} for name in ("models", "weights")]
    document["kubernetes"]["volumes"] += claims
    document["kubernetes"]["image_pull_secrets"] = ["login"]


@contextmanager
def cordoned(cluster, core):
    """Node-0 takes no pods."""
    core.patch_node("node-0", {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        core.patch_node("node-0", {"spec": {"unschedulable": None}})


@contextmanager
def tainted(cluster, core):
    """Node-1 is another team's."""
    taint = {"key": "team", "value": "research", "effect": "NoSchedule"}
    core.patch_node("node-1", {"spec": {"taints": [taint]}})
    try:
        yield
    finally:
        core.patch_node("node-1", {"spec": {"taints": None}})


@contextmanager
def occupied(cluster, core):
    """Nearly all CPUs of node-2 are held by a pod of somebody else's, which need not start for that."""
    cpus = int(core.read_node("node-2").status.allocatable["cpu"]) - 0.05
    container = {"name": "c", "image": "localhost/none:1", "resources": {"requests": {"cpu": str(cpus)}}}
    body = {
        "metadata": {"name": "train"},
        "spec": {"nodeName": "node-2", "containers": [container | {"imagePullPolicy": "Never"}]},
    }
    core.create_namespaced_pod("default", body)
    try:
        yield
    finally:
        core.delete_namespaced_pod("train", "default", grace_period_seconds=1)


@contextmanager
def a_silent_node(cluster, core):
    """Node-8 is known and has never said anything; node-9 is not even known."""
    core.create_node({"metadata": {"name": "node-8"}})
    try:
        yield
    finally:
        core.delete_node("node-8")


@contextmanager
def an_unbound_claim(cluster, core):
    """Nobody makes volumes of its class."""
    core.create_namespaced_persistent_volume_claim(NAMESPACE, claim("models", "ReadOnlyMany", storageClassName="none"))
    try:
        yield
    finally:
        core.delete_namespaced_persistent_volume_claim("models", NAMESPACE)


@contextmanager
def a_claim_of_one_node(cluster, core):
    """It is bound, and lets one node in."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/tmp"},
        "storageClassName": "",
        "claimRef": {"namespace": NAMESPACE, "name": "weights"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    core.create_persistent_volume({"metadata": {"name": "weights"}, "spec": spec})
    body = claim("weights", "ReadWriteOnce", storageClassName="", volumeName="weights")
    core.create_namespaced_persistent_volume_claim(NAMESPACE, body)
    read = core.read_namespaced_persistent_volume_claim
    wait_until(lambda: read("weights", NAMESPACE).status.phase == "Bound", BOUND_TIMEOUT_S)
    try:
        yield
    finally:
        core.delete_namespaced_persistent_volume_claim("weights", NAMESPACE)
        core.delete_persistent_volume("weights")


def claim(name, mode, **more):
    resources = {"requests": {"storage": "1Gi"}}
    return {"metadata": {"name": name}, "spec": {"accessModes": [mode], "resources": resources, **more}}


@contextmanager
def a_small_quota(cluster, core):
    """Two pods, where the plan has four."""
    core.create_namespaced_resource_quota(NAMESPACE, {"metadata": {"name": "team"}, "spec": {"hard": {"pods": "2"}}})
    try:
        yield
    finally:
        core.delete_namespaced_resource_quota("team", NAMESPACE)


@contextmanager
def a_strict_standard(cluster, core):
    """One that forbids host folders, which the test cluster's pods mount."""
    label = "pod-security.kubernetes.io/enforce"
    core.patch_namespace(NAMESPACE, {"metadata": {"labels": {label: "baseline"}}})
    try:
        yield
    finally:
        core.patch_namespace(NAMESPACE, {"metadata": {"labels": {label: None}}})


@contextmanager
def an_account_of_another_plan(cluster, core):
    """It has the name of ours."""
    labels = {"tidemill.dev/plan": "another"}
    core.create_namespaced_service_account(NAMESPACE, {"metadata": {"name": "demo-runtime", "labels": labels}})
    try:
        yield
    finally:
        core.delete_namespaced_service_account("demo-runtime", NAMESPACE)


@contextmanager
def a_silent_controller(cluster, core):
    """LeaderWorkerSet's webhook is asked where nobody listens."""
    hooks = client.AdmissionregistrationV1Api(cluster.api)
    (live,) = [each for each in hooks.list_mutating_webhook_configuration().items if each.metadata.name == WEBHOOKS]
    urls = {each.name: each.client_config.url for each in live.webhooks}
    point_webhooks(hooks, {name: url.replace(":9443", ":1") for name, url in urls.items() if "leader" in name})
    try:
        yield
    finally:
        point_webhooks(hooks, urls)


def point_webhooks(hooks, urls):
    """Change where webhooks are asked; the list is merged by name."""
    changed = [{"name": name, "clientConfig": {"url": url}} for name, url in urls.items()]
    hooks.patch_mutating_webhook_configuration(WEBHOOKS, {"webhooks": changed})


FAULTS = (
    cordoned,
    tainted,
    occupied,
    a_silent_node,
    an_unbound_claim,
    a_claim_of_one_node,
    a_small_quota,
    a_strict_standard,
    an_account_of_another_plan,
    a_silent_controller,
)


def test_a_probe_measures_between_nodes_and_leaves_nothing(cluster, spec, tmp_path):
    """A pod on each planned node has the image and reaches the others by name; prefill's tries the disk for KV."""
    before = listing(cluster.api)
    keeping = tmp_path / "spec.yaml"
    keeping.write_text(spec.read_text())
    disk = Path("/var/tidemill-test-kv")  # of the machine: nodes share its file system
    kept = {"memory": "16MiB", "disk": {"path": str(disk), "size": "100MB"}}
    change(keeping, lambda document: document.update(kv_cache=kept))

    done = doctor(keeping, cluster.kubeconfig, "--probe")

    assert (done.returncode, json.loads(done.stdout)) == (0, {"findings": []}), done.stderr
    said = re.search(r"all to all between 3 nodes: ([\d.]+) MB/s .*, ([\d.]+) in the worst case \(node-", done.stderr)
    assert "KV on 1 disk, at least" in done.stderr
    assert said, done.stderr
    assert float(said[1]) >= float(said[2]) > 0
    assert listing(cluster.api) == before
    disk.rmdir()  # it is empty


def test_a_probe_finds_the_image_that_nobody_has(cluster, spec, tmp_path):
    """On each node, and leaves nothing either."""
    before = listing(cluster.api)
    broken = tmp_path / "spec.yaml"
    broken.write_text(spec.read_text())
    change(broken, lambda document: document["kubernetes"].update(image="localhost/nobody:1"))

    done = doctor(broken, cluster.kubeconfig, "--probe")

    found = json.loads(done.stdout)["findings"]
    assert done.returncode == 3
    assert [(each["check"], each["object"]) for each in found] == [("image", f"Node node-{n}") for n in range(3)]
    assert all("image localhost/nobody:1 cannot be had" in each["reason"] for each in found)
    assert listing(cluster.api) == before


@pytest.fixture(scope="module")
def needs():
    """The demo's, as it ships."""
    return read_needs(compile_plan(check_spec(DEMO)))


def api_of(control_plane, user):
    """A user's way to the API server."""
    kubeconfig = control_plane.authority.issue_kubeconfig(user, control_plane.address.server, user=user)
    return Api(Connection(config.new_client_from_config(str(kubeconfig))))


def test_a_user_without_rights_hears_which(control_plane, needs):
    """Every kind of the plan, with every verb; what may not be looked at is a note, and nothing else is claimed."""
    facts = read_facts(api_of(control_plane, "eve"), needs)
    found = findings(needs, facts)

    assert {each.check for each in found} == {"rights"}
    assert {each.object for each in found if each.blocks} == {plural(kind) for _, kind in needs.kinds}
    assert {each.verbs for each in facts.missing_rights} == {("get", "create", "patch", "delete")}
    assert {"nodes", "pods", "the namespace"} <= {each.object for each in found if not each.blocks}


def test_rights_in_a_namespace_are_enough_there(control_plane, needs):
    """With a Role for the plan's kinds, and the namespace made by somebody else, no finding blocks."""
    core, rbac = client.CoreV1Api(control_plane.api), client.RbacAuthorizationV1Api(control_plane.api)
    with suppress(ConflictException):  # other tests plan for that namespace too
        core.create_namespace({"metadata": {"name": "tidemill"}})
    rules = [
        {
            "apiGroups": ["", "apps", "leaderworkerset.x-k8s.io", "networking.k8s.io"],
            "resources": ["*"],
            "verbs": [*VERBS, "list"],
        },
    ]
    rbac.create_namespaced_role("tidemill", {"metadata": {"name": "deployer"}, "rules": rules})
    subject = {"kind": "User", "name": "adam", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": "deployer", "apiGroup": "rbac.authorization.k8s.io"}
    rbac.create_namespaced_role_binding(
        "tidemill", {"metadata": {"name": "adam"}, "roleRef": role, "subjects": [subject]}
    )
    guest = without_namespace(needs)
    try:
        found = findings(guest, read_facts(api_of(control_plane, "adam"), guest))
    finally:
        rbac.delete_namespaced_role_binding("adam", "tidemill")
        rbac.delete_namespaced_role("deployer", "tidemill")

    assert [each for each in found if each.blocks] == []
    assert {each.object for each in found} == {"nodes", "pods", "storage classes"}


def without_namespace(needs):
    """The same in a namespace that somebody else made."""
    objects = tuple(each for each in needs.objects if each["kind"] != "Namespace")
    return replace(needs, creates_namespace=False, objects=objects)


def test_a_field_that_the_definition_lacks_is_told_by_the_servers_words(api_server, tmp_path):
    """The definition that is served is this version's; of an older one, the server's refusal says nothing more."""
    needs = read_needs(day_plan(tmp_path, namespace="newer"))
    newer = [each for each in needs.objects if each["kind"] == "TidemillDeployment"]
    newer[0]["spec"]["tides"] = 2  # as a later version may write
    core = client.CoreV1Api(api_server.api)
    core.create_namespace({"metadata": {"name": "newer", "labels": {"tidemill.dev/plan": "demo-day"}}})
    try:
        facts = read_facts(Api(Connection(api_server.api)), needs)
    finally:
        core.delete_namespace("newer")
    schema = facts.definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    same = of_our_kind(needs, facts)
    del schema["status"]["properties"]["demand"]
    older = of_our_kind(needs, facts)

    assert same == [("object", "TidemillDeployment newer/demo-day", True)]
    assert older == [("kind", "CustomResourceDefinition deployments.tidemill.dev", True)]


def of_our_kind(needs, facts):
    """Findings about our own kind, and whether they block."""
    found = findings(needs, facts)
    return [(each.check, each.object, each.blocks) for each in found if each.check in ("kind", "object")]

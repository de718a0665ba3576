"""What `status` finds in a cluster, against a fake API server that holds what controllers would have made of a plan."""

import json

import pytest
import yaml

from planner.compiler import compile_plan
from planner.manifests.render import render_files
from planner.problems.fix import apply_change
from planner.rules.check import check_spec
from stacks import cli
from stacks.live import status, status_cli
from stacks.live.look import look_at_cluster
from stacks.live.status import read_live_plan
from tests.stacks.deployments import DEMO_SPEC
from tests.stacks.kube.fake_api import running_fake_api

NAMESPACE = "/api/v1/namespaces/tidemill"
GROUPS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/tidemill/leaderworkersets"
SETS = "/apis/apps/v1/namespaces/tidemill/statefulsets"
READY = {
    "observedGeneration": 1,
    "updatedReplicas": 1,
    "readyReplicas": 1,
    "conditions": [{"type": "Available", "status": "True"}],
}
NO_PROXY = 'User "eve" cannot get resource "pods/proxy" in API group "" in the namespace "tidemill"'
NO_NODES = 'nodes is forbidden: User "eve" cannot list resource "nodes" in API group "" at the cluster scope'


@pytest.fixture(scope="module")
def plan():
    """The demo's."""
    return compile_plan(check_spec(DEMO_SPEC))


@pytest.fixture
def server(plan):
    """(fake, api) with the plan's units ready."""
    with running_fake_api() as (fake, api):
        for text in render_files(plan).values():
            document = yaml.safe_load(text)
            if document["kind"] == "LeaderWorkerSet":
                fake.store(f"{GROUPS}/{document['metadata']['name']}", document | {"status": READY})
        yield fake, api


def states(live):
    return {unit.name: (unit.state, unit.reason) for unit in live.units}


def test_units_of_an_applied_plan_are_ready(server, plan):
    """So the plan is applied: no object has the plan's digest, but each unit has that of its launch file."""
    _, api = server

    live = read_live_plan(plan, api)

    assert states(live) == {"demo-prefill-0": ("ready", None), "demo-decode-0": ("ready", None)}
    assert (live.plan_digest, live.unseen) == (plan.digest, None)


def test_a_unit_of_another_plan_is_named(server, plan, monkeypatch, capsys):
    """Its launch file is another; so the cluster has not this plan, and the command says why."""
    fake, api = server
    told = fake.objects[f"{GROUPS}/demo-decode-0"]["metadata"]["annotations"]
    told["tidemill.dev/launch-digest"] = "sha256:0"
    live = read_live_plan(plan, api)

    assert (live.plan_digest, live.differing) == (None, ("demo-decode-0",))
    monkeypatch.setattr(status, "connect", lambda context: api)
    assert cli.main(["status", str(DEMO_SPEC), "--context", "any"]) == 0
    assert "the cluster has another plan; units with another launch file: demo-decode-0" in capsys.readouterr().err


def test_both_maps_of_a_unit_are_named(server, plan, monkeypatch, capsys):
    """With `expert_load.live`, status names the plan's map and the one in service, and why they differ."""
    _, api = server
    live = {"every": "10min", "min_gain": 0.05, "max_bytes": "1GB"}
    change = {"expert_load.live": live, "kubernetes.controller": {}}
    changing = plan.with_sections(written=apply_change(plan.written, change), live_maps={})
    seen = {
        "unit": "demo-decode-0",
        "inService": "sha256:b",
        "epoch": 2,
        "adopted": "max/mean 2 -> 1",
        "decision": "no",
    }
    gone = {"unit": "demo-decode-9", "inService": "sha256:c", "epoch": 0}
    read, planned = api.get, {unit.name: unit.expert_map for unit in plan.units}["demo-decode-0"]

    def get(reference):
        is_day = reference.kind == "TidemillDeployment"
        return {"status": {"expertMaps": [seen, gone]}} if is_day else read(reference)

    monkeypatch.setattr(api, "get", get)
    monkeypatch.setattr(status, "connect", lambda context: api)
    monkeypatch.setattr(status_cli, "plan_from", lambda *_, **__: changing)
    maps = {unit.name: unit.expert_map for unit in read_live_plan(changing, api).units}
    assert cli.main(["status", str(DEMO_SPEC), "--context", "any"]) == 0

    why = "expert_load.live: max/mean 2 -> 1"
    assert maps == {
        "demo-prefill-0": None,
        "demo-decode-0": {"plan": planned, "in_service": "sha256:b", "why": why, "decision": "no"},
    }
    assert [each.own_map for each in look_at_cluster(changing, api).units] == [None, f"sha256:b: {why}"]
    said = f"    expert map sha256:b instead of the plan's {planned}: {why}\n    expert_load.live: no\n"
    assert said in capsys.readouterr().out


def test_a_unit_scaled_to_nothing_is_off(server, plan):
    """It is neither ready nor on its way."""
    fake, api = server
    fake.objects[f"{GROUPS}/demo-decode-0"]["spec"]["replicas"] = 0

    assert states(read_live_plan(plan, api))["demo-decode-0"] == ("off", "scaled to 0")


def test_units_may_be_stateful_sets(plan):
    """Ready when all their pods are."""
    of_sets = plan.with_sections(written=apply_change(plan.written, {"kubernetes.unit_kind": "statefulset"}))
    with running_fake_api() as (fake, api):
        for text in render_files(of_sets).values():
            document = yaml.safe_load(text)
            if document["kind"] == "StatefulSet":
                ready = document["spec"]["replicas"] if "prefill" in document["metadata"]["name"] else 1
                status_ = {"observedGeneration": 1, "readyReplicas": ready, "currentRevision": 1, "updateRevision": 1}
                fake.store(f"{SETS}/{document['metadata']['name']}", document | {"status": status_})
        found = states(read_live_plan(of_sets, api))

    assert found == {"demo-prefill-0": ("ready", None), "demo-decode-0": ("starting", "1 of 2 pods ready")}


def test_a_node_that_is_down_is_named_first(server, plan):
    """Whatever its pods still claim."""
    fake, api = server
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2"}, "spec": {}}
    fake.store("/api/v1/nodes/node-2", node | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})

    assert states(read_live_plan(plan, api))["demo-decode-0"] == ("failed", "node node-2 is not ready")


def test_a_unit_on_a_spare_says_for_which_node(server, plan, monkeypatch, capsys):
    """Ready there, while the planned node is down; in words and in JSON."""
    fake, api = server
    spared = with_spare(plan, "demo-decode-0", "node-7")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2"}, "spec": {}}
    fake.store("/api/v1/nodes/node-2", node | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    for number, name in enumerate(("node-1", "node-7")):
        labels = {"leaderworkerset.sigs.k8s.io/name": "demo-decode-0"}
        metadata = {"name": f"pod-{number}", "namespace": "tidemill", "labels": labels}
        spec = {"nodeName": name, "containers": [{"name": "runtime"}]}
        fake.store(
            f"{NAMESPACE}/pods/pod-{number}", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )
    monkeypatch.setattr(status, "connect", lambda context: api)
    monkeypatch.setattr(status_cli, "plan_from", lambda given, overlays: spared)

    assert cli.main(["status", "--context", "any"]) == 0
    assert "  demo-decode-0  decode  4 ranks  ready, on spare node-7 for node-2" in capsys.readouterr().out.splitlines()
    assert cli.main(["status", "--context", "any", "--format", "json"]) == 0
    decode = json.loads(capsys.readouterr().out)["units"][1]
    assert decode["stand_ins"] == [{"for_node": "node-2", "node": "node-7"}]


def store_gateway(fake, name, answer, status=503):
    """A gateway's pod that runs, and what the API server brings of its /readyz."""
    labels = {"tidemill.dev/plan": "demo", "app.kubernetes.io/component": "gateway"}
    metadata = {"name": name, "namespace": "tidemill", "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "gateway"}]}}
    fake.store(f"{NAMESPACE}/pods/{name}", pod | {"status": {"phase": "Running"}})
    fake.answers[f"{NAMESPACE}/pods/{name}:8000/proxy/readyz"] = (status, answer)


def test_a_unit_that_a_gateway_refuses_has_failed_with_its_reason(server, plan):
    """To its kubelet it is just not ready. A gateway without any ready unit answers with 503, and is heard as well."""
    fake, api = server
    units = [{"unit": "demo-prefill-0"}, {"unit": "demo-decode-0", "refused": "it loaded other weights"}]
    store_gateway(fake, "gateway-0", {"ready": False, "units": units})
    store_gateway(fake, "gateway-1", {"ready": True, "units": units[:1]}, status=200)

    live = read_live_plan(plan, api)

    assert states(live) == {
        "demo-prefill-0": ("ready", None),
        "demo-decode-0": ("failed", "demo-decode-0 gets no requests: it loaded other weights"),
    }
    assert live.unasked is None


@pytest.mark.parametrize(
    ("status_", "answer", "reason"),
    [
        (
            403,
            {"message": NO_PROXY},
            "may not get pods/proxy in namespace tidemill; bind a Role to it that allows get of",
        ),
        (503, {"message": "error trying to reach service: dial tcp"}, "error trying to reach service: dial tcp"),
        (200, {"units": [{}]}, "answers at port 8000, but not as expected"),
    ],
)
def test_a_gateway_that_cannot_be_asked_is_said_and_hides_nothing(
    server, plan, status_, answer, reason, monkeypatch, capsys
):
    """Units are shown as the cluster has them."""
    fake, api = server
    store_gateway(fake, "gateway-0", answer, status_)
    monkeypatch.setattr(status, "connect", lambda context: api)

    assert cli.main(["status", str(DEMO_SPEC), "--context", "any"]) == 0

    said = capsys.readouterr()
    assert "  demo-decode-0  decode  4 ranks  ready" in said.out.splitlines()
    assert "not every gateway could be asked which units it refuses: Pod tidemill/gateway-0" in said.err
    assert reason in said.err


def with_spare(plan, unit, node):
    """The plan with a spare for that unit."""
    file = f"{unit}.launch.json"
    document = plan.launch_documents[file] | {"spares": [node]}
    return plan.with_sections(launch_documents={**plan.launch_documents, file: document})


def test_rights_in_the_namespace_are_enough(server, plan):
    """Units are found as they are, and what was not looked at is said."""
    fake, api = server
    fake.forbidden["/api/v1/nodes"] = NO_NODES
    fake.forbidden["/api/v1/namespaces/tidemill"] = "no"

    live = read_live_plan(plan, api)

    assert states(live) == {"demo-prefill-0": ("ready", None), "demo-decode-0": ("ready", None)}
    assert live.plan_digest == plan.digest
    assert live.unseen.startswith("list of Nodes: the kubeconfig's user eve may not list nodes in the whole cluster; ")


def test_the_command_says_what_it_did_not_look_at(server, plan, monkeypatch, capsys):
    """On stderr, beside the JSON."""
    fake, api = server
    fake.forbidden["/api/v1/nodes"] = NO_NODES
    monkeypatch.setattr(status, "connect", lambda context: api)

    assert cli.main(["status", str(DEMO_SPEC), "--context", "any", "--format", "json"]) == 0

    said = capsys.readouterr()
    assert json.loads(said.out)["plan_digest"] == plan.digest
    assert "the nodes could not be read: list of Nodes: the kubeconfig's user eve may not list nodes" in said.err


def test_the_command_says_that_nothing_switches_units(server, tmp_path, monkeypatch, capsys):
    """Where the plan has a schedule that would."""
    _, api = server
    text = DEMO_SPEC.read_text().replace("../../", f"{DEMO_SPEC.parents[2]}/")
    windows = ("{at: '08:00', prefill_units: 1, decode_units: 1}", "{at: '20:00', prefill_units: 0, decode_units: 0}")
    path = tmp_path / "spec.yaml"
    path.write_text(f"{text}\nschedule: {{timezone: UTC, windows: [{', '.join(windows)}]}}\n")
    monkeypatch.setattr(status, "connect", lambda context: api)

    assert cli.main(["status", str(path), "--context", "any"]) == 0

    assert (
        "Without kubernetes.controller nothing switches units in a cluster: all of them stay on."
        in capsys.readouterr().err
    )

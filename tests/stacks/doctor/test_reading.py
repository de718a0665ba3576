"""One look at a cluster, against a fake API server; what a real one says to dry runs is held by `tests/cluster`."""

import json

import pytest
import yaml

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks import cli
from stacks.doctor import examination
from stacks.doctor.checks import findings
from stacks.doctor.needs import read_needs
from stacks.doctor.reading import read_facts
from stacks.kube.errors import UnreachableError
from tests.stacks.deployments import DEMO_SPEC
from tests.stacks.doctor.clusters import demo_needs, found, node
from tests.stacks.kube.fake_api import KINDS, running_fake_api

NAMESPACE = "/api/v1/namespaces/tidemill"
GROUPS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets"
NO_NODES = 'nodes is forbidden: User "eve" cannot list resource "nodes" in API group "" at the cluster scope'
SILENT = 'Internal error occurred: failed calling webhook "m.lws.io": failed to call webhook: connection refused'


@pytest.fixture(scope="module")
def needs():
    """The demo's."""
    return demo_needs()


@pytest.fixture(scope="module")
def overlaid(tmp_path_factory):
    """The demo's, with an overlay that no server would take."""
    unit_pod = {"spec": {"containers": [{"name": "sidecar"}]}}
    service = {"kind": "Service", "name": "demo-gateway", "patch": {"spec": {"type": "Loud"}}}
    spec = yaml.safe_load(DEMO_SPEC.read_text())
    for section, key in (("model", "config"), ("expert_load", "file")):
        spec[section][key] = str((DEMO_SPEC.parent / spec[section][key]).resolve())
    path = tmp_path_factory.mktemp("overlaid") / "spec.json"
    path.write_text(json.dumps(spec | {"kubernetes": {"overlay": {"unit_pod": unit_pod, "objects": [service]}}}))
    return read_needs(compile_plan(check_spec(path)))


@pytest.fixture
def server():
    """(fake, api) with the planned nodes and the namespace, which is the plan's own."""
    with running_fake_api() as (fake, api):
        for number in range(3):
            fake.store(f"/api/v1/nodes/node-{number}", node(f"node-{number}"))
        labels = {"tidemill.dev/plan": "demo"}
        fake.store(
            NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tidemill", "labels": labels}}
        )
        yield fake, api


def test_a_look_stores_nothing(server, needs):
    """A good cluster has no finding, and is afterwards as it was before."""
    fake, api = server
    before = dict(fake.objects)

    assert found(needs, read_facts(api, needs)) == []
    assert fake.objects == before
    assert {verb for verb, _ in fake.requests} == {"GET"}


def test_rights_are_asked_of_the_server(server, needs):
    """Each verb of each kind; what may not be listed is a note."""
    fake, api = server
    fake.denied = {("patch", "leaderworkersets"), ("delete", "leaderworkersets"), ("create", "namespaces")}
    fake.forbidden["/api/v1/nodes"] = NO_NODES

    facts = read_facts(api, needs)

    assert [(each.kind, each.namespace, each.verbs) for each in facts.missing_rights] == [
        ("LeaderWorkerSet", "tidemill", ("patch", "delete")),
        ("Namespace", "", ("create",)),
    ]
    assert facts.nodes is None
    assert found(needs, facts) == [("rights", "nodes"), ("rights", "LeaderWorkerSets"), ("rights", "Namespaces")]


def test_a_kind_that_is_not_served_is_one_finding(server, needs):
    """Its objects are not tried besides."""
    fake, api = server
    del fake.kinds["/apis/leaderworkerset.x-k8s.io/v1"]

    assert found(needs, read_facts(api, needs)) == [("kind", "LeaderWorkerSet")]


def test_a_kind_in_an_older_version_is_named(server, needs):
    """So that nobody looks for what is installed."""
    fake, api = server
    fake.kinds["/apis/leaderworkerset.x-k8s.io/v1alpha1"] = fake.kinds.pop("/apis/leaderworkerset.x-k8s.io/v1")

    (finding,) = findings(needs, read_facts(api, needs))

    assert finding.reason == "the cluster serves leaderworkerset.x-k8s.io in v1alpha1, but not LeaderWorkerSet in v1"


def test_a_silent_webhook_is_found_before_the_namespace_is_there(server, needs):
    """The objects are tried in the namespace `default` then."""
    fake, api = server
    del fake.objects[NAMESPACE]
    missing = (404, 'namespaces "tidemill" not found')
    for unit in ("demo-prefill-0", "demo-decode-0"):
        fake.refused[f"{GROUPS.format('tidemill')}/{unit}"] = missing
        fake.refused[f"{GROUPS.format('default')}/{unit}"] = (500, SILENT)

    assert found(needs, read_facts(api, needs)) == [("webhook", "m.lws.io")]


def test_an_object_of_another_plan_is_found(server, needs):
    """By its label."""
    fake, api = server
    metadata = {"name": "demo-runtime", "namespace": "tidemill", "labels": {"tidemill.dev/plan": "other"}}
    fake.store(
        f"{NAMESPACE}/serviceaccounts/demo-runtime",
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
    )

    assert found(needs, read_facts(api, needs)) == [("owner", "ServiceAccount tidemill/demo-runtime")]


def test_what_an_overlay_got_wrong_is_named_in_it(server, overlaid):
    """The server's words say what is wrong with the pods and the Service, and our path where it was written."""
    fake, api = server
    fake.refused[f"{NAMESPACE}/pods/tidemill-doctor"] = (
        422,
        "Pod is invalid: spec.containers[1].image: Required value",
    )
    fake.refused[f"{NAMESPACE}/services/demo-gateway"] = (
        422,
        'Service is invalid: spec.type: Unsupported value: "Loud"',
    )

    service, *pods = findings(overlaid, read_facts(api, overlaid))

    assert (service.check, service.object) == ("object", "Service tidemill/demo-gateway")
    assert 'spec.type: Unsupported value: "Loud"' in service.reason
    assert service.fix == "correct kubernetes.overlay.objects.0.patch.spec.type"
    assert [each.object for each in pods] == ["pods of decode", "pods of gateway", "pods of prefill"]
    assert "spec.containers[1].image: Required value" in pods[0].reason
    assert pods[0].fix == pods[2].fix == "correct kubernetes.overlay.unit_pod.spec.containers.0"
    assert pods[1].fix == "correct kubernetes.overlay, or the field that writes it"


def test_a_template_that_its_object_is_refused_for_is_said_once(server, overlaid):
    """Its pods would be refused for the same."""
    fake, api = server
    fake.refused[f"{NAMESPACE}/pods/tidemill-doctor"] = (
        422,
        "Pod is invalid: spec.containers[1].image: Required value",
    )
    template = "spec.leaderWorkerTemplate.workerTemplate.spec.containers[1].image: Required value"
    for unit in ("demo-prefill-0", "demo-decode-0"):
        fake.refused[f"{GROUPS.format('tidemill')}/{unit}"] = (422, template)

    assert found(overlaid, read_facts(api, overlaid)) == [
        ("object", "LeaderWorkerSet tidemill/demo-prefill-0"),
        ("object", "LeaderWorkerSet tidemill/demo-decode-0"),
        ("pod", "pods of gateway"),
    ]


def test_pods_are_tried_elsewhere_where_their_namespace_is_not_there(server, needs):
    """What no namespace takes is found; what depends on the namespace is not asked."""
    fake, api = server
    del fake.objects[NAMESPACE]
    path = "/api/v1/namespaces/default/pods/tidemill-doctor"

    fake.refused[path] = (403, "exceeded quota: all")
    assert found(needs, read_facts(api, needs)) == []
    fake.refused[path] = (422, "Pod is invalid: spec.a: Required value")
    assert [each for each, _ in found(needs, read_facts(api, needs))] == ["pod"] * 3


def test_pods_are_not_tried_where_their_namespace_will_be_another(server, needs):
    """The standard that holds there now is not the plan's."""
    fake, api = server
    fake.refused[f"{NAMESPACE}/pods/tidemill-doctor"] = (403, "no")
    assert [each for each, _ in found(needs, read_facts(api, needs))] == ["pod"] * 3

    fake.objects[NAMESPACE]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    assert found(needs, read_facts(api, needs)) == []


def test_nothing_is_applied_to_a_namespace_that_goes(server, needs):
    """It is waited for."""
    fake, api = server
    fake.objects[NAMESPACE]["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"
    fake.refused[f"{NAMESPACE}/serviceaccounts/demo-runtime"] = (403, "because it is being terminated")

    assert found(needs, read_facts(api, needs)) == [("namespace", "Namespace tidemill")]


def test_a_cluster_that_does_not_answer_is_no_finding(needs):
    """Nothing is known then."""
    with running_fake_api() as (_, gone):
        pass

    with pytest.raises(UnreachableError):
        read_facts(gone, needs)


def test_the_command_exits_with_3_for_what_blocks(server, monkeypatch, capsys):
    """And prints its findings all the same, in words and as JSON."""
    fake, api = server
    monkeypatch.setattr(examination, "connect", lambda context: api)

    assert cli.main(["doctor", str(DEMO_SPEC), "--context", "prod"]) == 0
    assert capsys.readouterr().out == "demo: nothing in the cluster of context prod stands in its way\n"

    fake.objects["/api/v1/nodes/node-1"]["spec"]["unschedulable"] = True
    assert cli.main(["doctor", str(DEMO_SPEC), "--context", "prod"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo, in the cluster of context prod: 1 finding, of which 1 would stop `up`"
    assert lines[1].startswith("  blocks  node  Node node-1: it is cordoned; ")

    assert cli.main(["doctor", str(DEMO_SPEC), "--context", "prod", "--format", "json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert sorted(finding) == ["blocks", "check", "fix", "object", "reason"]


def test_notes_alone_leave_the_exit_status(server, monkeypatch, capsys):
    """Nothing would stop `up`."""
    fake, api = server
    fake.forbidden["/api/v1/nodes"] = NO_NODES
    monkeypatch.setattr(examination, "connect", lambda context: api)

    assert cli.main(["doctor", str(DEMO_SPEC), "--context", "prod"]) == 0
    assert "1 finding, of which 0 would stop `up`" in capsys.readouterr().out


def test_a_probe_waits_until_nothing_blocks(server, monkeypatch, capsys):
    """Its pods would meet the same obstacles; so nothing is created, and that is said."""
    fake, api = server
    fake.objects["/api/v1/nodes/node-1"]["spec"]["unschedulable"] = True
    monkeypatch.setattr(examination, "connect", lambda context: api)

    assert cli.main(["doctor", str(DEMO_SPEC), "--context", "prod", "--probe"]) == 3

    assert capsys.readouterr().err == "nodes were not probed: first fix the findings that block\n"
    assert {verb for verb, _ in fake.requests} == {"GET"}


def test_the_fake_server_serves_what_the_plan_needs(needs):
    """Else the other tests would find kinds missing."""
    served = {
        (path.removeprefix("/apis/").removeprefix("/api/"), each["kind"]) for path in KINDS for each in KINDS[path]
    }

    assert set(needs.kinds) <= served

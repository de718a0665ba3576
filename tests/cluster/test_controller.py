"""The controller against a real API server, with the rights that its own Role gives it.

Nothing runs pods here: what units report is written into their status by the test.
"""

import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from kubernetes import client

from planner.manifests.render import KUSTOMIZATION, render_files
from stacks.controller.act import FIELD_MANAGER
from stacks.controller.following import Following
from stacks.controller.health import Health
from stacks.controller.lease import LASTS_S, Lease
from stacks.controller.loop import follow, one_round
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from tests.cluster.definitions import serve_definitions
from tests.cluster.objects import Objects
from tests.stacks.controller.day_spec import day_plan

NAMESPACE, NAME, ACCOUNT = "day", "demo-day", "demo-day-controller"
UNITS = [f"demo-day-{phase}-{index}" for phase in ("prefill", "decode") for index in (0, 1)]
SECOND = {"demo-day-prefill-1", "demo-day-decode-1"}
NODES = [f"node-{index}" for index in range(4)]  # of the units, in their order
SPARE = "node-4"
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
TAINT = {"key": "team", "value": "serving", "effect": "PreferNoSchedule"}  # somebody else's
QUOTA = {"cluster_queue": "batch", "flavor": "lent", "per_node": ["nvidia.com/gpu=8"]}
LWS = ("leaderworkerset.x-k8s.io", "v1", NAMESPACE, "leaderworkersets")
DEPLOYMENTS = ("tidemill.dev", "v1alpha1", NAMESPACE, "deployments")


def at(hour, minute=0):
    """A time of 1 December 2026."""
    return datetime(2026, 12, 1, hour, minute, tzinfo=UTC).timestamp()


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Kind and name -> object of the demo's day with a controller."""
    plan = day_plan(
        tmp_path_factory.mktemp("day"),
        cluster={"nodes": 5, "spares": [SPARE]},
        namespace=NAMESPACE,
        controller={"lend_nodes": True, "heal": {}, "kueue": QUOTA},
    )
    files = render_files(plan)
    found = [yaml.safe_load(text) for name, text in files.items() if name != KUSTOMIZATION]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.fixture(scope="module")
def objects(api_server, documents, tmp_path_factory):
    """The provider's way to write, after it has written everything."""
    made = Objects(api_server.api, str(tmp_path_factory.mktemp("discovery") / "cache.json"))
    core = client.CoreV1Api(api_server.api)
    for name in (*NODES, SPARE):
        core.create_node({"metadata": {"name": name}})
        core.patch_node(name, {"spec": {"taints": [TAINT]}})  # and not what a node without a kubelet gets
    for each in documents.values():
        made.apply(each)
    yield made
    for name in (*NODES, SPARE):
        core.delete_node(name)


@pytest.fixture(scope="module")
def account(api_server, objects):
    """The API as the controller's pod sees it."""
    return api_of_account(api_server, ACCOUNT)


def api_of_account(api_server, name):
    """The API by the token of an account of the plan."""
    body = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=3600))
    token = client.CoreV1Api(api_server.api).create_namespaced_service_account_token(name, NAMESPACE, body)
    settings = client.Configuration()
    settings.host, settings.ssl_ca_cert = api_server.api.configuration.host, api_server.api.configuration.ssl_ca_cert
    settings.api_key = {"authorization": f"Bearer {token.status.token}"}
    return client.ApiClient(settings)


@pytest.fixture
def custom(api_server, objects):
    """The administrator's way to objects of other groups. All units are on and ready, and there is no order."""
    calls = client.CustomObjectsApi(api_server.api)
    for unit in UNITS:
        calls.patch_namespaced_custom_object(*LWS, unit, {"spec": {"replicas": 1}})
        report(calls, unit, ready=1)
    none = dict.fromkeys(("hold", "force", "metrics", "demand", "stragglersLast"))
    calls.patch_namespaced_custom_object(*DEPLOYMENTS, NAME, {"spec": none})
    client.CoreV1Api(api_server.api).delete_collection_namespaced_event(NAMESPACE)
    leases = client.CoordinationV1Api(api_server.api)
    for each in leases.list_namespaced_lease(NAMESPACE).items:
        leases.delete_namespaced_lease(each.metadata.name, NAMESPACE)
    return calls


@pytest.fixture
def following(custom, account):
    """The controller of the demo's day."""
    return following_as("one", account)


def following_as(holder, account, said=None):
    lease = Lease.of(NAMESPACE, ACCOUNT, holder, FIELD_MANAGER)
    return Following(Api(Connection(account)), NAMESPACE, NAME, lease, (said if said is not None else []).append)


def report(custom, unit, ready):
    """Write the status that LeaderWorkerSet's controller would write."""
    live = custom.get_namespaced_custom_object(*LWS, unit)
    condition = {
        "type": "Available",
        "status": "True",
        "reason": "AllGroupsReady",
        "message": "",
        "lastTransitionTime": "2026-12-01T00:00:00Z",
    }
    status = {
        "observedGeneration": live["metadata"]["generation"],
        "replicas": ready,
        "readyReplicas": ready,
        "updatedReplicas": ready,
        "conditions": [condition],
    }
    custom.patch_namespaced_custom_object_status(*LWS, unit, {"status": status})


def replicas(custom):
    """Unit -> the groups that it is scaled to."""
    items = custom.list_namespaced_custom_object(*LWS)["items"]
    return {each["metadata"]["name"]: each["spec"]["replicas"] for each in items}


def on(custom):
    return {unit for unit, number in replicas(custom).items() if number}


def deployment(custom):
    return custom.get_namespaced_custom_object(*DEPLOYMENTS, NAME)


def condition(custom, kind):
    (found,) = (each for each in deployment(custom)["status"]["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_units_go_and_come_back_as_the_day_says(custom, following, api_server):
    """At noon the second unit of each phase drains; both are started again so long before 18:00 as they warm up."""
    one_round(following, at(12))
    assert on(custom) == set(UNITS) - SECOND

    one_round(following, at(17, 29))
    assert on(custom) == set(UNITS) - SECOND

    one_round(following, at(17, 30))
    assert on(custom) == set(UNITS)
    events = client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items
    assert {(each.reason, each.message.partition(":")[0]) for each in events if each.reason in ("Drain", "Start")} == {
        (reason, unit) for reason in ("Drain", "Start") for unit in SECOND
    }


def test_a_unit_that_is_not_ready_keeps_another_in_its_place(custom, following):
    """No unit goes while a phase would have too few ready ones without it."""
    report(custom, "demo-day-decode-0", ready=0)

    one_round(following, at(12))

    assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
    assert "stays until demo-day-decode-0" in deployment(custom)["status"]["why"]
    report(custom, "demo-day-decode-0", ready=1)
    one_round(following, at(12, 1))
    assert on(custom) == set(UNITS) - SECOND


def test_a_round_that_changes_nothing_writes_nothing_but_its_lease(custom, following):
    """So nobody who watches the cluster hears of it."""
    one_round(following, at(12))
    one_round(following, at(12, 1))  # writes that the units are gone
    before = [deployment(custom), custom.list_namespaced_custom_object(*LWS)["items"]]

    one_round(following, at(12, 2))

    assert [deployment(custom), custom.list_namespaced_custom_object(*LWS)["items"]] == before


def test_neither_the_stack_nor_the_controller_undoes_the_other(custom, following, objects, documents):
    """What is applied again leaves replicas to the controller, and an order to the person who gave it."""
    one_round(following, at(12))
    hold = {"spec": {"hold": {"until": "2026-12-01T19:00:00Z"}}}
    custom.patch_namespaced_custom_object(*DEPLOYMENTS, NAME, hold, field_manager="kubectl-patch")

    for each in documents.values():
        objects.apply(each)

    assert on(custom) == set(UNITS) - SECOND
    assert deployment(custom)["spec"]["hold"] == hold["spec"]["hold"]
    managers = custom.get_namespaced_custom_object(*LWS, "demo-day-decode-1")["metadata"]["managedFields"]
    owners = {each["manager"] for each in managers if "f:replicas" in each["fieldsV1"].get("f:spec", {})}
    assert owners <= {FIELD_MANAGER}  # empty until kubernetes/kubernetes#131892 is mended


def test_a_person_holds_the_day_and_forces_a_state(custom, following):
    """Each until its time, and the status says so."""
    order(custom, hold={"until": "2026-12-01T13:00:00Z"})
    one_round(following, at(12))
    assert on(custom) == set(UNITS)
    assert condition(custom, "Following")[:2] == ("False", "Held")

    order(custom, hold=None, force={"state": "22:00", "until": "2026-12-02T12:00:00Z"})
    one_round(following, at(20))
    assert on(custom) == set(UNITS) - SECOND
    assert condition(custom, "Following") == ("True", "Forced", "state 22:00 is forced")


def test_demand_starts_a_unit_ahead_of_the_schedule(custom, following, api_server):
    """At 23:00 it goes; it is on again when its node's user has had notice, and goes after its stay is over."""
    with gateway_page("7.0") as page:
        order(custom, metrics=page.url, demand=page.demand)
        one_round(following, at(23))
        page.requests = "8.0"
        one_round(following, at(23, 1))
        assert on(custom) == set(UNITS) - SECOND
        assert nodes(api_server)["node-3"][0] == "reclaimed"
        one_round(following, at(23, 6))
        assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
        more = condition(custom, "Forecast")

        page.requests = "7.0"
        one_round(following, at(23, 10))
        assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
        report(custom, "demo-day-decode-1", ready=1)
        for minute in (40, 59):
            one_round(following, at(23, minute))
        assert on(custom) == set(UNITS) - SECOND

    assert more == ("False", "MoreDemand", "demand asks for 2 decode units, the day for 1")
    said = [each.message for each in client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items]
    assert "demo-day-decode-1: demand asks for it" in said


def test_a_unit_that_a_rank_holds_up_is_relieved(custom, following, api_server):
    """At night another one of its phase is started, and it goes when that is ready."""
    with gateway_page("1.0", straggler="demo-day-decode-0") as page:
        order(custom, metrics=page.url, stragglersLast={})
        for minute in (0, 1):
            one_round(following, at(23, minute))
        assert on(custom) == set(UNITS) - SECOND
        one_round(following, at(23, 5))
        assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
        report(custom, "demo-day-decode-1", ready=1)
        one_round(following, at(23, 6))
        assert on(custom) == {"demo-day-prefill-0", "demo-day-decode-1"}
        assert deployment(custom)["status"]["stragglers"] == [{"unit": "demo-day-decode-0", "isLast": True}]
    said = [each.reason for each in client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items]
    assert said.count("Straggling") == 1


@contextmanager
def gateway_page(requests, straggler="nobody"):
    """A gateway's metrics, with `requests` of its decode unit; `demand` is what a deployment has to say to read it."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            figures = {"ready_units": "1.0", "requests": server.requests}
            self.send_response(200)
            self.end_headers()
            for name, value in figures.items():
                self.wfile.write(f'tidemill_phase_{name}{{phase="decode"}} {value}\n'.encode())
            self.wfile.write(f'tidemill_unit_straggler{{unit="{straggler}"}} 3.0\n'.encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        server.requests = requests
        server.url = f"http://127.0.0.1:{server.server_port}/metrics"
        server.demand = {
            "used": 0.9,
            "backlog": 1.5,
            "afterSeconds": 60,
            "staySeconds": 900,
            "rooms": {"decode": {"requests": 8}},
        }
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def order(custom, **orders):
    custom.patch_namespaced_custom_object(*DEPLOYMENTS, NAME, {"spec": orders}, field_manager="kubectl-patch")


def test_an_order_that_nobody_can_follow_is_said(custom, following):
    """A state that the day has not: nothing is changed, and the status has the place and what there is."""
    order(custom, force={"state": "21:00", "until": "2026-12-02T12:00:00Z"})

    one_round(following, at(12))

    assert on(custom) == set(UNITS)
    said = "spec.force.state (21:00) is none of the day's: 06:00, 11:00, 18:00, 20:00, 22:00"
    assert condition(custom, "Following") == ("False", "WrongDay", said)


@pytest.mark.parametrize(
    "spec",
    [{"hold": {}}, {"hold": {"until": "tomorrow"}}, {"force": {"state": "noon", "until": "2026-12-02T12:00:00Z"}}],
)
def test_an_order_without_form_is_refused_by_the_server(custom, spec):
    """The definition's schema knows what an order is."""
    with pytest.raises(client.ApiException) as refused:
        order(custom, **spec)
    assert refused.value.status == 422


def test_kubectl_shows_a_line_for_people(custom, following, api_server):
    """State, units, what comes next, and why."""
    one_round(following, at(12))
    for unit in SECOND:
        report(custom, unit, ready=0)
    one_round(following, at(12, 1))

    path = f"{api_server.api.configuration.host}/apis/tidemill.dev/v1alpha1/namespaces/{NAMESPACE}/deployments"
    accept = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1", **api_server.api.default_headers}
    table = yaml.safe_load(api_server.api.call_api("GET", path, header_params=accept).read())

    assert [each["name"] for each in table["columnDefinitions"]] == ["Name", "State", "Units", "Free", "Next", "Why"]
    assert table["rows"][0]["cells"] == [
        NAME,
        "11:00",
        "prefill 1/1, decode 1/1",
        2,
        "18:00: 2 more (2026-12-01T18:00:00Z)",
        "as planned",
    ]


def nodes(api_server):
    """Node -> its mark, and the keys of its taints, but for those that Kubernetes gives a node without a kubelet."""
    found = client.CoreV1Api(api_server.api).list_node().items
    return {
        each.metadata.name: (
            (each.metadata.labels or {}).get("tidemill.dev/node"),
            [taint.key for taint in each.spec.taints if not taint.key.startswith("node.kubernetes.io/")],
        )
        for each in found
        if each.metadata.name in NODES
    }


def test_nodes_of_units_that_are_off_are_lent(custom, following, api_server):
    """Free when the pods are gone, tainted five minutes before the unit starts, and its own again when it serves."""
    core = client.CoreV1Api(api_server.api)
    labels = {"tidemill.dev/plan": NAME, "tidemill.dev/unit": "demo-day-decode-1"}
    pod = {"serviceAccountName": "demo-day-runtime", "containers": [{"name": "runtime", "image": "x"}]}
    core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": "ends", "labels": labels}, "spec": pod})
    none, free = (None, ["team"]), ("free", ["team"])
    try:
        one_round(following, at(12))
        one_round(following, at(12, 1))
        assert nodes(api_server) == dict(zip(NODES, [none, free, none, none], strict=True))
    finally:
        core.delete_namespaced_pod("ends", NAMESPACE, grace_period_seconds=0)

    one_round(following, at(12, 2))
    assert nodes(api_server) == dict(zip(NODES, [none, free, none, free], strict=True))
    assert deployment(custom)["status"]["freeNodes"] == 2

    one_round(following, at(17, 25))
    reclaimed = ("reclaimed", ["team", "tidemill.dev/reclaimed"])
    assert nodes(api_server) == dict(zip(NODES, [none, reclaimed, none, reclaimed], strict=True))

    one_round(following, at(17, 30))
    for unit in SECOND:
        report(custom, unit, ready=1)
    one_round(following, at(17, 59))
    assert nodes(api_server) == dict.fromkeys(NODES, none)
    said = [each.reason for each in core.list_namespaced_event(NAMESPACE).items]
    assert (said.count("Freed"), said.count("Reclaimed")) == (2, 2)


@pytest.fixture
def cluster_queue(api_server, tmp_path):
    """Kueue's kind as far as quotas go, with its lists and what it says of them, and a queue without quota."""
    resource = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "nominalQuota": QUANTITY}}
    flavor = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "resources": listed(resource)}}
    group = {"type": "object", "properties": {"coveredResources": {"type": "array", "items": TEXT}}}
    group["properties"]["flavors"] = listed(flavor)
    groups = {"type": "array", "x-kubernetes-list-type": "atomic", "items": group}
    spec = {"type": "object", "properties": {"resourceGroups": groups}}
    version = {"name": "v1beta1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    names = {"kind": "ClusterQueue", "plural": "clusterqueues", "singular": "clusterqueue"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterqueues.kueue.x-k8s.io"},
        "spec": {"group": "kueue.x-k8s.io", "scope": "Cluster", "names": names, "versions": [version]},
    }
    path = tmp_path / "clusterqueue.yaml"
    path.write_text(yaml.safe_dump(definition))
    serve_definitions(api_server, [path])
    calls = client.CustomObjectsApi(api_server.api)
    lent = {"name": "lent", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "0"}]}
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "batch"}}
    queue["spec"] = {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [lent]}]}
    calls.create_cluster_custom_object(*QUEUES, queue)
    yield lambda: calls.get_cluster_custom_object(*QUEUES, "batch")["spec"]["resourceGroups"]
    client.ApiextensionsV1Api(api_server.api).delete_custom_resource_definition(definition["metadata"]["name"])


QUEUES = ("kueue.x-k8s.io", "v1beta1", "clusterqueues")
TEXT, QUANTITY = {"type": "string"}, {"x-kubernetes-int-or-string": True}


def listed(item):
    """A list by name."""
    return {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item}


def test_kueues_quota_follows_the_nodes_that_are_free(custom, cluster_queue, account, api_server):
    """Eight GPUs for each; none once they are to be left."""
    following = following_as("one", account)
    one_round(following, at(12))
    one_round(following, at(12, 1))
    by_day = cluster_queue()
    one_round(following, at(17, 25))

    assert by_day[0]["flavors"][0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]
    assert cluster_queue()[0]["flavors"][0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": "0"}]
    said = [each.message for each in client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items]
    assert {each for each in said if each.startswith("the quota")} == {
        f"the quota of batch in lent is {number} nvidia.com/gpu" for number in (16, 0)
    }


@pytest.fixture
def pods(api_server, objects):
    """A pod for each unit, on its node."""
    core = client.CoreV1Api(api_server.api)
    for unit, node in zip(UNITS, NODES, strict=True):
        labels = {"tidemill.dev/plan": NAME, "tidemill.dev/unit": unit}
        containers = [{"name": "runtime", "image": "x"}]
        spec = {"serviceAccountName": "demo-day-runtime", "nodeName": node, "containers": containers}
        core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": f"{unit}-0", "labels": labels}, "spec": spec})
    yield core
    for unit in UNITS:
        with suppress(client.ApiException):  # one is gone by then
            core.delete_namespaced_pod(f"{unit}-0", NAMESPACE, grace_period_seconds=0)


def healthy(custom):
    return condition(custom, "Healthy")[:2]


def test_a_unit_leaves_a_node_that_is_cordoned(custom, following, pods):
    """It is drained, and the next round starts it again; the event says why."""
    one_round(following, at(10))
    assert healthy(custom) == ("True", "NoFaults")
    pods.patch_node("node-3", {"spec": {"unschedulable": True, "taints": [TAINT, CORDON]}})
    try:
        one_round(following, at(10, 1) + 10)
        assert on(custom) == set(UNITS), "nobody looks at nodes in every round"
        one_round(following, at(10, 2))
        assert on(custom) == set(UNITS) - {"demo-day-decode-1"}
        one_round(following, at(10, 2) + 5)
        assert on(custom) == set(UNITS)
    finally:
        pods.patch_node("node-3", {"spec": {"unschedulable": None, "taints": [TAINT]}})
    said = [each.message for each in pods.list_namespaced_event(NAMESPACE).items if each.reason == "Drain"]
    assert said == ["demo-day-decode-1: node-3, which is cordoned; it moves to a spare"]


def test_a_node_that_reports_a_fault_gets_a_taint_and_its_unit_leaves(custom, following, pods):
    """First the taint, which the scheduler reads; with the condition it goes again."""
    one_round(following, at(10))
    report_condition(pods, "node-1", "True")
    one_round(following, at(10, 1))
    assert taints(pods, "node-1") == ["team", "tidemill.dev/faulty"]
    one_round(following, at(10, 2))
    assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}

    report_condition(pods, "node-1", "False")
    one_round(following, at(10, 3))
    assert taints(pods, "node-1") == ["team"]
    said = {each.message for each in pods.list_namespaced_event(NAMESPACE).items if each.reason in ("Faulty", "Mended")}
    assert said == {"node-1 reports a fault", "node-1 reports no fault any more"}


def test_a_pod_of_a_node_that_does_not_answer_is_forgotten(custom, following, pods):
    """Once Kubernetes has told it to end and its time is over; before, it may still answer."""
    name, lost = "demo-day-decode-1-0", {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    pods.patch_node("node-3", {"spec": {"taints": [TAINT, lost]}})
    try:
        pods.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=60)
        one_round(following, now := time.time() // 30 * 30)
        assert pods.read_namespaced_pod(name, NAMESPACE).metadata.deletion_timestamp
        one_round(following, now + 120)
        with pytest.raises(client.ApiException) as gone:
            pods.read_namespaced_pod(name, NAMESPACE)
    finally:
        pods.patch_node("node-3", {"spec": {"taints": [TAINT]}})
    assert gone.value.status == 404
    said = [each.message for each in pods.list_namespaced_event(NAMESPACE).items if each.reason == "Forget"]
    assert said == [f"{name}: node-3 does not answer, and its time to end is over"]


def test_without_a_spare_the_status_asks_for_a_new_plan(custom, following, pods):
    """Once, by an event, and for as long as it is so, by a condition."""
    for node in (SPARE, "node-3"):
        pods.patch_node(node, {"spec": {"taints": [TAINT, CORDON]}})
    try:
        for minute in range(3):
            one_round(following, at(10, minute))
            one_round(following, at(10, minute) + 10)
    finally:
        for node in (SPARE, "node-3"):
            pods.patch_node(node, {"spec": {"taints": [TAINT]}})
    reason = "demo-day-decode-1 is on node-3, which is cordoned, and no spare is left: plan again without it"
    assert on(custom) == set(UNITS)
    assert condition(custom, "Healthy") == ("False", "Stuck", reason)
    events = [each for each in pods.list_namespaced_event(NAMESPACE).items if each.reason == "Stuck"]
    assert [(each.type, each.message) for each in events] == [("Warning", reason)]


def report_condition(core, node, status):
    found = {"type": "GPUMissing", "status": status, "reason": "GPUMissing", "message": ""}
    core.patch_node_status(node, {"status": {"conditions": [found]}})


def taints(core, node):
    return [each.key for each in core.read_node(node).spec.taints]


def test_a_mark_that_somebody_took_away_comes_back(custom, following, api_server):
    """Nodes are looked at every five minutes, whatever the status says."""
    one_round(following, at(12))
    one_round(following, at(12, 1))
    gone = {"metadata": {"labels": {"tidemill.dev/node": None}}}
    client.CoreV1Api(api_server.api).patch_node("node-3", gone)

    one_round(following, at(12, 5))

    assert nodes(api_server)["node-3"][0] == "free"


def test_one_of_two_controllers_acts(custom, following, account):
    """The other takes over when the first has been silent for as long as a lease lasts."""
    other = following_as("two", account)
    now = at(10)
    assert one_round(following, now).startswith("state 06:00")

    assert one_round(other, now + LASTS_S - 1) == "another controller follows this deployment"
    assert one_round(other, now + LASTS_S + 1).startswith("state 06:00")
    assert one_round(following, now + LASTS_S + 2) == "another controller follows this deployment"


def test_a_controller_that_ends_lets_go_at_once(custom, account):
    """The next one does not wait for the lease to run out."""
    said, ending = [], threading.Event()
    ended = following_as("one", account, said)

    follow(ended, ending.is_set, lambda _: ending.set(), Health())

    assert one_round(following_as("two", account), time.time()).startswith("state ")
    assert said


def test_a_controller_goes_on_after_what_went_wrong(account, custom):
    """It says each new reason once, and follows the day as soon as that can be done."""
    said, rounds = [], iter(range(4))
    lost = following_as("one", account, said)
    lost = Following(lost.api, "nowhere", NAME, None, said.append)

    follow(lost, lambda: next(rounds) == 3, lambda _: None, Health())

    (reason,) = said
    assert "may not get deployments" in reason or "forbidden" in reason


def test_a_dry_run_says_what_it_would_do(custom, account):
    """It takes no lease and writes nothing."""
    said = []
    before = deployment(custom)

    one_round(Following(Api(Connection(account)), NAMESPACE, NAME, None, said.append), at(12))

    assert said == [
        "would drain demo-day-decode-1: nobody needs it now",
        "would drain demo-day-prefill-1: nobody needs it now",
        "would have 0 nodes free and 0 left",
        "would keep new pods away from no node",
    ]
    assert on(custom) == set(UNITS)
    assert deployment(custom) == before


def rights_of(api):
    """(verb, resource, name) as `kubectl auth can-i --list` has them, less what every account may do."""
    review = client.V1SelfSubjectRulesReview(spec=client.V1SelfSubjectRulesReviewSpec(namespace=NAMESPACE))
    found = client.AuthorizationV1Api(api).create_self_subject_rules_review(review).status.resource_rules
    return {
        (verb, resource, name)
        for each in found
        for verb in each.verbs
        for resource in each.resources
        for name in each.resource_names or [""]
        if not resource.startswith("selfsubject")
    }


def test_the_account_may_do_what_its_page_says_and_no_more(account):
    """Each right, by verb, resource and name."""
    assert rights_of(account) == {
        ("get", "deployments", NAME),
        ("patch", "deployments/status", NAME),
        ("list", "leaderworkersets", ""),
        *(("patch", "leaderworkersets/scale", unit) for unit in UNITS),
        ("get", "leases", ACCOUNT),
        ("patch", "leases", ACCOUNT),
        ("create", "leases", ""),
        ("create", "events", ""),
        ("list", "pods", ""),
        *(("delete", "pods", f"{unit}-0") for unit in UNITS),
        *((verb, "clusterqueues", "batch") for verb in ("get", "patch")),
        ("list", "nodes", ""),
        *((verb, "nodes", node) for verb in ("get", "patch") for node in (*NODES, SPARE)),
    }


@pytest.mark.parametrize("name", ["demo-day-runtime", "demo-day-gateway"])
def test_ranks_and_gateway_have_no_rights(api_server, objects, name):
    """Their pods have no token either."""
    assert rights_of(api_of_account(api_server, name)) == set()

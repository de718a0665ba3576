"""The demo's day on an API server: its names, the controller that follows it, and what it has done."""

from datetime import UTC, datetime

from kubernetes import client

from stacks.controller.act import FIELD_MANAGER
from stacks.controller.follower import Follower
from stacks.controller.lease import Lease
from stacks.kube.api import Api
from stacks.kube.connection import Connection

__all__ = [
    "ACCOUNT",
    "DEPLOYMENTS",
    "LWS",
    "NAME",
    "NAMESPACE",
    "NODES",
    "SECOND",
    "SPARE",
    "TAINT",
    "UNITS",
    "SeenByLeaderWorkerSet",
    "api_of_account",
    "at",
    "condition",
    "deployment",
    "following_as",
    "last_change",
    "nodes",
    "on",
    "order",
    "promised_by",
    "replicas",
    "report",
]

NAMESPACE, NAME, ACCOUNT = "day", "demo-day", "demo-day-controller"
UNITS = [f"demo-day-{phase}-{index}" for phase in ("prefill", "decode") for index in (0, 1)]
SECOND = {"demo-day-prefill-1", "demo-day-decode-1"}
NODES = [f"node-{index}" for index in range(4)]  # of the units, in their order
SPARE = "node-4"
TAINT = {"key": "team", "value": "serving", "effect": "PreferNoSchedule"}  # somebody else's
LWS = ("leaderworkerset.x-k8s.io", "v1", NAMESPACE, "leaderworkersets")
DEPLOYMENTS = ("tidemill.dev", "v1alpha1", NAMESPACE, "deployments")


def at(hour, minute=0):
    """A time of 1 December 2026."""
    return datetime(2026, 12, 1, hour, minute, tzinfo=UTC).timestamp()


def following_as(holder, account, said=None):
    lease = Lease(NAMESPACE, ACCOUNT, holder, FIELD_MANAGER)
    return Follower(Api(Connection(account)), NAMESPACE, NAME, lease, (said if said is not None else []).append)


class SeenByLeaderWorkerSet(Api):
    """The API, where LeaderWorkerSet's controller sees at once what is drained."""

    def __init__(self, connection, custom):
        super().__init__(connection)
        self._custom = custom

    def merge(self, reference, changes, *, manager, part=""):
        super().merge(reference, changes, manager=manager, part=part)
        if part == "scale" and not changes["spec"]["replicas"]:
            report(self._custom, reference.name, ready=0)


def api_of_account(api_server, name, namespace=NAMESPACE):
    """The API by the token of an account of the plan."""
    body = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=3600))
    token = client.CoreV1Api(api_server.api).create_namespaced_service_account_token(name, namespace, body)
    settings = client.Configuration()
    settings.host, settings.ssl_ca_cert = api_server.api.configuration.host, api_server.api.configuration.ssl_ca_cert
    settings.api_key = {"authorization": f"Bearer {token.status.token}"}
    return client.ApiClient(settings)


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


def last_change(custom):
    """Units of the last change with their fates, sorted, and the fewest that served. They are as it was promised."""
    change = deployment(custom)["status"]["changes"][-1]
    least, promised = (
        {phase: (each["units"], each["ofUnits"]) for phase, each in shares.items()}
        for shares in (change["least"], change["promised"]["least"])
    )

    assert (change.get("outcome"), change["left"]) == ("CarriedOut", []), change
    assert promised == least, change
    return sorted((each["name"], each["change"]) for each in change["units"]), least


def promised_by(diff):
    """The same by a diff's JSON; a unit that moves restarts."""
    units = [each for each in diff["units"] if each["phase"] in ("prefill", "decode") and each["change"] != "kept"]
    fates = [(each["name"], "restarted" if each["change"] == "moved" else each["change"]) for each in units]
    return sorted(fates), {
        phase: (each["units"], each["of_units"]) for phase, each in diff["ways"]["git"]["least_units"].items()
    }


def order(custom, **orders):
    custom.patch_namespaced_custom_object(*DEPLOYMENTS, NAME, {"spec": orders}, field_manager="kubectl-patch")


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

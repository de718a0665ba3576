"""The test cluster's enforcer of NetworkPolicies, by cases after Kubernetes' own conformance tests for them.

Source of the cases: github.com/kubernetes/kubernetes test/e2e/network/netpol/network_policy.go
"""

import pytest
from kubernetes import client

from tests.cluster.policies import connects, enforced_policies
from tests.cluster.test_cluster import pod_spec

HERE, THERE = "policies-here", "policies-there"
PORTS = (8000, 8001)
SERVE = "for port in 8000 8001; do httpd -p $port -h /tmp; done; sleep 3600"
PLACES = {"server": HERE, "friend": HERE, "other": HERE, "stranger": THERE}
SERVER = {"podSelector": {"matchLabels": {"role": "server"}}}
FRIEND = {"podSelector": {"matchLabels": {"role": "friend"}}}
INGRESS, EGRESS = {"policyTypes": ["Ingress"]}, {"policyTypes": ["Egress"]}
ALL = {"friend", "other", "stranger"}


def at_both(roles):
    """Whoever reaches the server at one port reaches it at the other."""
    return dict.fromkeys(PORTS, roles)


# what is allowed -> the policy of the server's namespace, and who reaches the server at which port
CASES = {
    "nobody selects the server": (FRIEND | INGRESS, at_both(ALL)),
    "no rule": (SERVER | INGRESS, {}),
    "an empty rule": (SERVER | INGRESS | {"ingress": [{}]}, at_both(ALL)),
    "pods by label": (SERVER | INGRESS | {"ingress": [{"from": [FRIEND]}]}, at_both({"friend"})),
    "pods by expression": (
        SERVER
        | INGRESS
        | {
            "ingress": [
                {
                    "from": [
                        {
                            "podSelector": {
                                "matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["friend"]}]
                            }
                        }
                    ]
                }
            ]
        },
        at_both({"other"}),
    ),
    "every namespace": (
        SERVER | INGRESS | {"ingress": [{"from": [{"namespaceSelector": {}}]}]},
        at_both(ALL),
    ),
    "a namespace by label": (
        SERVER | INGRESS | {"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"place": THERE}}}]}]},
        at_both({"stranger"}),
    ),
    "a pod of a namespace": (
        SERVER | INGRESS | {"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"place": THERE}}} | FRIEND]}]},
        {},
    ),
    "a port": (SERVER | INGRESS | {"ingress": [{"ports": [{"port": 8001}]}]}, {8001: ALL}),
    "ports from to": (
        SERVER | INGRESS | {"ingress": [{"ports": [{"port": 7000, "endPort": 8000}]}]},
        {8000: ALL},
    ),
    "a block": (
        SERVER | INGRESS | {"ingress": [{"from": [{"ipBlock": {"cidr": "10.244.0.0/16"}}]}]},
        at_both(ALL),
    ),
    "a block with a hole": (
        SERVER | INGRESS | {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.244.0.0/16"]}}]}]},
        {},
    ),
    "the way out": (FRIEND | EGRESS, at_both({"other", "stranger"})),
    "the way out, to pods": (FRIEND | EGRESS | {"egress": [{"to": [SERVER]}]}, at_both(ALL)),
    "the way out, to a port": (
        FRIEND | EGRESS | {"egress": [{"to": [SERVER], "ports": [{"port": 8001}]}]},
        {8000: {"other", "stranger"}, 8001: ALL},
    ),
}


@pytest.fixture(scope="module")
def pods(cluster):
    """Four pods, each on a node of its own; the server answers at two ports."""
    core = client.CoreV1Api(cluster.api)
    for name in (HERE, THERE):
        core.create_namespace({"metadata": {"name": name, "labels": {"place": name}}})
        cluster.wait_until(lambda name=name: core.list_namespaced_service_account(name).items, "an account", 30)
    for (role, namespace), node in zip(PLACES.items(), cluster.nodes, strict=True):
        spec = pod_spec(cluster, "sh", "-c", SERVE) | {"nodeName": node}
        core.create_namespaced_pod(namespace, {"metadata": {"name": role, "labels": {"role": role}}, "spec": spec})

    def found():
        return {role: core.read_namespaced_pod(role, namespace) for role, namespace in PLACES.items()}

    cluster.wait_until(lambda: all(each.status.phase == "Running" for each in found().values()), "four pods run", 60)
    with enforced_policies(cluster):
        yield found()
    for name in (HERE, THERE):
        core.delete_namespace(name)
    cluster.wait_until(
        lambda: not {HERE, THERE} & {each.metadata.name for each in core.list_namespace().items}, "both are gone", 60
    )


@pytest.mark.parametrize("case", CASES)
def test_a_policy_lets_through_what_it_says(cluster, pods, case):
    """From each of three pods to two ports of the server; what is expected differs from one case to the next."""
    spec, allowed = CASES[case]
    api = client.NetworkingV1Api(cluster.api)
    api.create_namespaced_network_policy(HERE, {"metadata": {"name": "case"}, "spec": spec})
    try:
        cluster.wait_until(
            lambda: reached(cluster, pods) == {port: set(allowed.get(port, ())) for port in PORTS}, case, 15
        )
    finally:
        api.delete_namespaced_network_policy("case", HERE)


def reached(cluster, pods):
    """Port of the server -> who reaches it."""
    address = pods["server"].status.pod_ip
    return {port: {role for role in sorted(ALL) if connects(cluster, pods[role], address, port)} for port in PORTS}

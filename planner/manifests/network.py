"""Template variables for NetworkPolicies, which allow only these connections:

    callers -> gateway: http          ranks -> gateway: registry       prefill -> decode: kv
    ranks of one unit: everything     scrapers -> everybody: metrics   everybody -> DNS
    controller -> API server, the gateway's metrics if it reads them, those of ranks if it changes their maps
    another engine's router and units: everything among themselves

A kubelet's probes are always allowed. Policies have no effect in a cluster whose network does not enforce them, on pods
in their node's network, and on interfaces of other networks.
"""

from collections.abc import Mapping
from typing import Any

from planner.facts import names
from planner.facts.engines import OURS
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.manifests.container import engine_container
from planner.plan.plan import Plan

Edges = dict[str, Any]  # `ingress` and `egress`: lists of rules of a NetworkPolicy

# Most networks judge a connection to a Service by the port of the pod or server behind it, some by the Service's port.
# Ports of API servers: the Service's and managed clusters', kube-apiserver's --secure-port, minikube's, MicroK8s'.
API_SERVER_PORTS = (443, 6443, 8443, 16443)
DNS_PORTS = (53, 5353)  # of the Service and CoreDNS, and of OpenShift's DNS pods
EVERY_NAMESPACE: Edges = {"namespaceSelector": {}}


def default_edges() -> Edges:
    """Return the connections that every pod may make, which are only those to DNS.

    Kubernetes refuses a connection that no policy allows.
    """
    dns = [_port(port, protocol=protocol) for port in DNS_PORTS for protocol in ("UDP", "TCP")]
    return {"ingress": [], "egress": [{"ports": dns}]}


def gateway_edges(plan: Plan) -> Edges:
    """Return the gateway's connections. Ranks call our gateway, whereas another engine's router calls ranks."""
    ports = _gateway_ports(plan)
    units = {"podSelector": _select_units(plan)}
    from_callers = {"ports": [_port(ports["http"])]}  # from anybody, also outside the cluster
    scraped = {"from": [EVERY_NAMESPACE], "ports": [_port(ports["metrics"])]}
    if plan.engine == OURS:
        return {
            "ingress": [from_callers, {"from": [units], "ports": [_port(ports["registry"])]}, scraped],
            "egress": [],
        }
    to_server = {"ports": [_port(port) for port in API_SERVER_PORTS]}  # the router watches pods there
    return {"ingress": [from_callers, {"from": [units]}, scraped], "egress": [{"to": [units]}, to_server]}


def unit_edges(plan: Plan, unit: Unit) -> Edges:
    """Return the connections that the pods of `unit` may make and accept."""
    own = {"podSelector": {"matchLabels": names.unit_selector(unit.name)}}
    if plan.engine != OURS:
        container = engine_container(plan.unit_document(unit))
        scraped = {"from": [EVERY_NAMESPACE], "ports": [_port(container.ports[container.metrics.port])]}
        everybody = {"podSelector": {"matchLabels": names.plan_selector(plan.name)}}
        return {"ingress": [{"from": [everybody]}, scraped], "egress": [{"to": [everybody]}]}
    ports, last = plan.unit_document(unit)["ports"], unit.ranks_per_node - 1
    gateway = {"podSelector": {"matchLabels": names.gateway_selector(plan.name)}}
    kv, metrics = ([_port(ports[name], ports[name] + last)] for name in ("kv", "metrics"))
    edges: Edges = {
        "ingress": [{"from": [own]}, {"from": [EVERY_NAMESPACE], "ports": metrics}],
        "egress": [{"to": [own]}, {"to": [gateway], "ports": [_port(ports["registry"])]}],
    }
    if unit.phase == "decode":
        edges["ingress"].append({"from": [_select_phase(plan, "prefill")], "ports": kv})
    if unit.phase == "prefill":
        decode = max(each.ranks_per_node for each in plan.units_of("decode"))
        edges["egress"].append(
            {"to": [_select_phase(plan, "decode")], "ports": [_port(ports["kv"], ports["kv"] + decode - 1)]}
        )
    return edges


def controller_edges(plan: Plan) -> Edges:
    """Return the controller's connections, to the API server and to metrics."""
    egress: list[Edges] = [{"ports": [_port(port) for port in API_SERVER_PORTS]}]
    if plan.engine == OURS:
        gateway = {"podSelector": {"matchLabels": names.gateway_selector(plan.name)}}
        egress.append({"to": [gateway], "ports": [_port(_gateway_ports(plan)["metrics"])]})
    if listening := [unit for unit in plan.units if plan.gets_epochs(unit)]:
        first, more = names.Ports.METRICS, max(unit.ranks_per_node for unit in listening) - 1
        egress.append({"to": [{"podSelector": _select_units(plan)}], "ports": [_port(first, first + more)]})
    return {"ingress": [], "egress": egress}


def _gateway_ports(plan: Plan) -> Mapping[str, int]:
    """Return name -> port of the gateway, or of another engine's router in its place."""
    document = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]
    ports: Mapping[str, int] = document["ports"] if plan.engine == OURS else engine_container(document).ports
    return ports


def _select_units(plan: Plan) -> Edges:
    """Return the label selector of all units' pods."""
    is_unit = {"key": names.UNIT_LABEL, "operator": "Exists"}
    return {"matchLabels": names.plan_selector(plan.name), "matchExpressions": [is_unit]}


def _select_phase(plan: Plan, phase: Phase) -> Edges:
    return {"podSelector": {"matchLabels": names.phase_selector(plan.name, phase)}}


def _port(first: int, last: int | None = None, protocol: str = "TCP") -> dict[str, Any]:
    """Return a NetworkPolicy's entry for the port `first`, or for all ports from `first` to `last`."""
    more = {"endPort": last} if last is not None and last > first else {}
    return {"protocol": protocol, "port": first} | more

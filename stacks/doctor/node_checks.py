"""Checks that the planned nodes exist, are ready, admit the plan's pods, and have room. Pure.

A unit is placed by the names of its nodes, so each node is checked for the pods planned for it. An unusable spare is
only a note: the unit starts without it. So is a node that reports a fault. A node that cannot be used at all is not
checked further.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from stacks.doctor.facts import ClusterFacts
from stacks.doctor.findings import Check, Finding
from stacks.doctor.needs import Needs, PodSet, pod_requests, sum_amounts
from stacks.kube.faults import reported_fault
from stacks.kube.manifest import Manifest, find_condition
from stacks.kube.pods import unready_nodes
from stacks.kube.quantities import Amounts, amount_text, amounts
from stacks.kube.taints import repelling_taints, taint_text

__all__ = ["gateway", "nodes"]

HOSTNAME = "kubernetes.io/hostname"
NONE = Decimal(0)
PLAN_WITHOUT = "list the nodes to use in cluster.nodes, and plan again"

# Taints that the node controller adds to nodes which are not ready or cordoned: other findings report those.
# Source: https://kubernetes.io/docs/reference/labels-annotations-taints/
COVERED_TAINTS = {f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "unschedulable")}

# resource -> what makes a node offer it
OFFERED_BY = {
    "nvidia.com/gpu": "NVIDIA's driver and device plugin, or its GPU operator",
    "amd.com/gpu": "AMD's driver and device plugin, or its GPU operator",
}
DEVICE_PLUGIN = "the device plugin that offers it"


@dataclass(frozen=True)
class PlannedNode:
    """A node that the plan names, with the pods planned for it. The cluster may not have it."""

    name: str
    pod_set: PodSet
    is_spare: bool

    def finding(self, check: Check, reason: str, fix: str) -> Finding:
        """Return a finding about this node, which blocks unless the node is a spare."""
        return Finding(check, f"Node {self.name}", reason, fix, blocks=not self.is_spare)


def nodes(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield the findings about every planned node, then about every spare; none if nodes could not be listed."""
    if facts.nodes is None:
        return
    known = {each["metadata"]["name"]: each for each in facts.nodes}
    planned = [PlannedNode(name, each, is_spare=False) for each in needs.pod_sets for name in each.nodes]
    spares = [PlannedNode(name, each, is_spare=True) for each in needs.pod_sets for name in each.spares]
    for place in (*planned, *spares):
        node = known.get(place.name)
        if node is None:
            yield place.finding("node", *_explain_absence(place.name, known))
        elif unready_nodes([node]):
            fix = f"see why: kubectl describe node {place.name}; or without it: {PLAN_WITHOUT}"
            yield place.finding("node", f"it is not ready: {_explain_unready(node)}", fix)
        else:
            yield from _find_barriers(place, node)
            yield from _find_fault(place, node, needs)
            yield from _find_shortages(place, node)
            yield from _find_occupied(place, node, needs, facts)


def gateway(needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each kind of pod not bound to nodes, such as the gateway's, if no node has room for it.

    What the units' pods request counts as taken.
    """
    if facts.nodes is None:
        return
    taken = {name: [each.requests] for each in needs.pod_sets for name in each.nodes}
    for pod_set in needs.pod_sets:
        if not pod_set.nodes and not any(
            _has_room(node, pod_set, taken.get(node["metadata"]["name"], []), needs, facts) for node in facts.nodes
        ):
            yield Finding("gateway", f"pods of {pod_set.owner}", *_explain_no_room(pod_set, facts.nodes))


def _explain_no_room(pod_set: PodSet, nodes: Sequence[Manifest]) -> tuple[str, str]:
    """Return (reason, fix) for a pod that is not bound to nodes and that no node has room for."""
    closed = [node for node in nodes if _blocking_taints(node, pod_set) or _missing_labels(node, pod_set)]
    if closed and len(closed) == len(nodes):
        lacking = dict.fromkeys(label for node in nodes for label in _missing_labels(node, pod_set))
        taints = dict.fromkeys(taint for node in nodes for taint in _blocking_taints(node, pod_set))
        parts = [f"{what} {', '.join([*each][:3])}" for what, each in (("labels", lacking), ("taints", taints)) if each]
        reason = f"each of {len(nodes)} nodes lacks a label that they ask for or has a taint: {'; '.join(parts)}"
        return reason, "correct kubernetes.overlay.gateway_pod.spec: its nodeSelector, or its tolerations"
    wanted = ", ".join(f"{amount_text(amount)} {name}" for name, amount in pod_set.requests.items())
    return (
        f"none of {len(nodes)} nodes is ready, admits it and has {wanted or 'room'} left",
        "add a node, or ask for less",
    )


def _find_barriers(place: PlannedNode, node: Manifest) -> Iterator[Finding]:
    """Yield a finding for each cordon, missing label and taint for which the scheduler keeps the pods off the node."""
    if node["spec"].get("unschedulable"):
        fix = f"let it take pods again: kubectl uncordon {place.name}; or without it: {PLAN_WITHOUT}"
        yield place.finding("node", "it is cordoned", fix)
    for label in _missing_labels(node, place.pod_set):
        fix = f"label it: kubectl label node {place.name} {label}; or correct kubernetes.node_selector"
        yield place.finding("node", f"it lacks the label {label}, which the pods ask for", fix)
    for taint in _blocking_taints(node, place.pod_set):
        fix = f"remove it: kubectl taint node {place.name} {taint}-; or tolerate it in kubernetes.tolerations"
        yield place.finding("taint", f"it has the taint {taint}, which the pods do not tolerate", fix)


def _find_fault(place: PlannedNode, node: Manifest, needs: Needs) -> Iterator[Finding]:
    """Yield a note if the node reports a fault, by the plan's own settings: the controller moves units off it."""
    fault = reported_fault(node, needs.heal) if needs.heal else None
    if fault:
        reason = f"it has {fault}, and by kubernetes.controller.heal that is a fault, which units leave"
        fix = f"repair it, or correct kubernetes.controller.heal; or without the node: {PLAN_WITHOUT}"
        yield Finding("node", f"Node {place.name}", reason, fix, blocks=False)


def _explain_absence(name: str, known: Mapping[str, Manifest]) -> tuple[str, str]:
    """Return (reason, fix) for a planned node whose `name` no node of the cluster has.

    If `name` is the hostname label of a node with another name, the fix says so.
    """
    alias = next((each for each, node in known.items() if _labels(node).get(HOSTNAME) == name), None)
    if alias:
        reason = f"it is the label {HOSTNAME} of the Node {alias}, and pods are placed by the Node's own name"
        return reason, f"call it {alias} in cluster.nodes, and plan again"
    return "the cluster has no Node of that name", f"as `kubectl get nodes` names them: {PLAN_WITHOUT}"


def _explain_unready(node: Manifest) -> str:
    ready = find_condition(node, "Ready")
    said = ready.get("message") or ready.get("reason") or "it has not reported yet"
    return " ".join(said.split()).rstrip(".")


def _labels(node: Manifest) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _missing_labels(node: Manifest, pod_set: PodSet) -> list[str]:
    selector = pod_set.template["spec"].get("nodeSelector") or {}
    return [f"{key}={value}" for key, value in selector.items() if _labels(node).get(key) != value]


def _blocking_taints(node: Manifest, pod_set: PodSet) -> list[str]:
    """Return the node's taints that keep the pods away, as `kubectl taint` writes them, without COVERED_TAINTS."""
    taints = repelling_taints(node, pod_set.template["spec"].get("tolerations") or [])
    return [taint_text(each) for each in taints if each["key"] not in COVERED_TAINTS]


def _find_shortages(place: PlannedNode, node: Manifest) -> Iterator[Finding]:
    """Yield a finding for each resource of which the node has too little for the pod, even without any other pods."""
    status = node.get("status") or {}
    allocatable, capacity = amounts(status.get("allocatable")), amounts(status.get("capacity"))
    for resource, wanted in place.pod_set.requests.items():
        offered, has = allocatable.get(resource, NONE), capacity.get(resource, NONE)
        needed = f"{amount_text(wanted)} are needed"
        if wanted <= offered:
            continue
        if "/" not in resource:
            reason = f"pods get {amount_text(offered)} of its {resource}, and {needed}"
            yield place.finding("capacity", reason, "ask for less in kubernetes.resources, or take larger nodes")
        elif not has:
            others = ", ".join(sorted(name for name in allocatable if "/" in name)) or "none"
            reason = f"it offers no {resource}, and {needed}; devices that it offers: {others}"
            fix = f"install {OFFERED_BY.get(resource, DEVICE_PLUGIN)} there; or correct the resource's name in the spec"
            yield place.finding("device", reason, fix)
        else:
            reason = f"it offers {amount_text(offered)} {resource} of {amount_text(has)} that it has, and {needed}"
            mend = "repair the others; or " if wanted <= has else ""
            yield place.finding("device", reason, f"{mend}without the node: {PLAN_WITHOUT}")


def _find_occupied(place: PlannedNode, node: Manifest, needs: Needs, facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each resource of which other pods hold so much that too little is left for the pod."""
    offered = amounts((node.get("status") or {}).get("allocatable"))
    holders = _foreign_pods(node, place.pod_set, needs, facts)
    held = sum_amounts(pod_requests(each["spec"]) for each in holders)
    for resource, wanted in place.pod_set.requests.items():
        taken, there_is = held.get(resource, NONE), offered.get(resource, NONE)
        if wanted <= there_is < wanted + taken:
            by = _name_pods([each for each in holders if resource in pod_requests(each["spec"])])
            amount = f"{amount_text(taken)} of its {amount_text(there_is)} {resource}"
            reason = f"other pods hold {amount}, and {amount_text(wanted)} are needed: {by}"
            yield place.finding("occupied", reason, f"stop or move them; or without the node: {PLAN_WITHOUT}")


def _name_pods(pods: Sequence[Manifest]) -> str:
    """Return the names of up to three pods, and the number of further ones."""
    shown = ", ".join(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in pods[:3])
    return f"{shown} and {len(pods) - 3} more" if len(pods) > 3 else shown


def _foreign_pods(node: Manifest, pod_set: PodSet, needs: Needs, facts: ClusterFacts) -> list[Manifest]:
    """Return the pods on a node that are not the plan's, and that the plan's pods cannot evict by priority."""
    name, priority = node["metadata"]["name"], _eviction_priority(pod_set, facts)
    return [
        each
        for each in facts.pods or ()
        if each["spec"].get("nodeName") == name
        and not needs.owns(each)
        and (priority is None or (each["spec"].get("priority") or 0) >= priority)
    ]


def _eviction_priority(pod_set: PodSet, facts: ClusterFacts) -> int | None:
    """Return the priority with which the pods evict others; None if they cannot evict any."""
    wanted = pod_set.template["spec"].get("priorityClassName")
    found = next(
        (
            live
            for required, live in facts.required_objects.items()
            if (required.kind, required.name) == ("PriorityClass", wanted)
        ),
        None,
    )
    if found is None or found.get("preemptionPolicy") == "Never":
        return None
    return int(found["value"])


def _has_room(node: Manifest, pod_set: PodSet, taken: Sequence[Amounts], needs: Needs, facts: ClusterFacts) -> bool:
    if unready_nodes([node]) or node["spec"].get("unschedulable"):
        return False
    if _blocking_taints(node, pod_set) or _missing_labels(node, pod_set):
        return False
    offered = amounts((node.get("status") or {}).get("allocatable"))
    held = sum_amounts([*taken, *(pod_requests(each["spec"]) for each in _foreign_pods(node, pod_set, needs, facts))])
    return all(wanted + held.get(name, NONE) <= offered.get(name, NONE) for name, wanted in pod_set.requests.items())

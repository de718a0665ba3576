"""Warn where a spec opens the node to a pod, a pod to the network, or a process to other code.

Pods see nothing of their node but what a field of the spec names. `host_network` and an overlay may let them, since
some site needs it; it should not go unseen in a review of the spec. What else a namespace admits is Pod Security's to
say: `tidemill doctor` asks the cluster.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.problems.finding import Finding
from planner.problems.fix import removal
from planner.rules.rule import Candidate, Rule
from planner.spec.pods import OverlaySpec

__all__ = ["RULES"]

# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline)
EXPOSING = {
    "hostNetwork": "the pod then reaches all that its node reaches; kubernetes.host_network says it for units",
    "hostPID": "the pod could then see and kill the node's processes",
    "hostIPC": "the pod then shares memory with the processes of its node",
    "privileged": "a privileged container has all rights of its node",
    "hostPath": "the pod then has a folder of its node, and may write there unless it is mounted read-only",
}
LOADING = ("LD_PRELOAD", "LD_AUDIT")  # Source: ld.so(8), "Environment"


def pods_keep_to_themselves(c: Candidate) -> Iterator[Finding]:
    """Warn of each such field, by its path in the spec; of the node's network where policies are meant to hold."""
    kubernetes = c.resolved.written.kubernetes
    rule = "W108 opens the node to a pod"
    if kubernetes.host_network and kubernetes.network_policies:
        reason = "NetworkPolicies do not hold there: who can reach the nodes can reach the ranks' ports"
        fix = "protect the nodes with a firewall, or remove it and give pods their NICs with kubernetes.rdma"
        yield Finding("kubernetes.host_network", True, rule, reason, fix)
    if kubernetes.overlay is not None:
        for path in _exposing(kubernetes.overlay.model_dump(), "kubernetes.overlay"):
            yield Finding(path, None, rule, EXPOSING[path.rpartition(".")[2]], removal())
        yield from _opened_by(kubernetes.overlay)


def _opened_by(overlay: OverlaySpec) -> Iterator[Finding]:
    """Warn of other code in containers, and of policies for everybody."""
    for path, variable in _loading(overlay.model_dump(), "kubernetes.overlay"):
        reason = f"{variable} names code that each process of the container runs"
        yield Finding(path, None, "W108 adds code to a container", reason, removal())
    for index, each in enumerate(overlay.objects):
        patch = each.patch if each.kind == "NetworkPolicy" else {}
        for path in _opening(patch, f"kubernetes.overlay.objects.{index}.patch"):
            reason = "the policy then keeps nobody out"
            yield Finding(path, None, "W108 opens pods to everybody", reason, removal())


def _exposing(value: Any, path: str) -> Iterator[str]:
    for key, inner in _below(value):
        if key in EXPOSING and inner not in (None, False):
            yield f"{path}.{key}"
        else:
            yield from _exposing(inner, f"{path}.{key}")


def _loading(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each variable of a container that adds code to its processes, with its name."""
    if (
        isinstance(value, dict)
        and value.get("name") in LOADING
        and "$patch" not in value
        and path.split(".")[-2] == "env"
    ):
        yield path, value["name"]
    for key, inner in _below(value):
        yield from _loading(inner, f"{path}.{key}")


def _opening(patch: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield each rule of a NetworkPolicy that is about everybody."""
    spec = patch.get("spec")
    for field, peers in (("ingress", "from"), ("egress", "to")):
        rules = spec.get(field) if isinstance(spec, dict) else None
        for index, rule in enumerate(rules if isinstance(rules, list) else ()):
            if isinstance(rule, dict) and (not rule.get(peers) or any(map(_is_everybody, rule[peers]))):
                yield f"{path}.spec.{field}.{index}"


def _is_everybody(peer: Any) -> bool:
    block = peer.get("ipBlock") if isinstance(peer, dict) else None
    return isinstance(block, dict) and str(block.get("cidr")).endswith("/0")


def _below(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


RULES = (Rule("W108", "laid out", pods_keep_to_themselves),)

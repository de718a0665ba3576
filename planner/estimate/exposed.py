"""Warn where a spec opens the node to a pod.

Pods see nothing of their node but what a field of the spec names. `host_network` and an overlay may let them, since
some site needs it; it should not go unseen in a review of the spec. What else a namespace admits is Pod Security's to
say: `tidemill doctor` asks the cluster.
"""

from collections.abc import Iterator
from typing import Any

from planner.problems.errors import Violation
from planner.problems.fix import removal
from planner.spec.kubernetes import KubernetesSpec

__all__ = ["exposed_by"]

# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline)
EXPOSING = {
    "hostNetwork": "the pod then reaches all that its node reaches; kubernetes.host_network says it for units",
    "hostPID": "the pod could then see and kill the node's processes",
    "hostIPC": "the pod then shares memory with the processes of its node",
    "privileged": "a privileged container has all rights of its node",
    "hostPath": "the pod then has a folder of its node, and may write there unless it is mounted read-only",
}


def exposed_by(kubernetes: KubernetesSpec) -> Iterator[Violation]:
    """Warn of each such field, by its path in the spec; of the node's network where policies are meant to hold."""
    rule = "W108 opens the node to a pod"
    if kubernetes.host_network and kubernetes.network_policies:
        reason = "NetworkPolicies do not hold there: who can reach the nodes can reach the ranks' ports"
        fix = "protect the nodes with a firewall, or remove it and give pods their NICs with kubernetes.rdma"
        yield Violation("kubernetes.host_network", True, rule, reason, fix)
    if kubernetes.overlay is not None:
        for path in _exposing(kubernetes.overlay.model_dump(), "kubernetes.overlay"):
            yield Violation(path, None, rule, EXPOSING[path.rpartition(".")[2]], removal())


def _exposing(value: Any, path: str) -> Iterator[str]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        if key in EXPOSING and inner not in (None, False):
            yield f"{path}.{key}"
        else:
            yield from _exposing(inner, f"{path}.{key}")

"""Warn if a spec gives pods access to their node, for example to its network.

By default pods see only the parts of their node that the spec names. Some sites need `host_network` or an overlay that
exposes more; the warning shows this to a reviewer. What a namespace admits, Pod Security decides: `tidemill doctor`
asks the cluster.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from planner.problems.finding import Finding
from planner.problems.fix import removal
from planner.rules.rule import Candidate, Rule

# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline)
EXPOSING_FIELDS = {
    "hostNetwork": "the pod then reaches all that its node reaches; kubernetes.host_network says it for units",
    "hostPID": "the pod could then see and kill the node's processes",
    "hostIPC": "the pod then shares memory with the processes of its node",
    "privileged": "a privileged container has all rights of its node",
    "hostPath": "the pod then has a folder of its node, and may write there unless it is mounted read-only",
}


def pods_stay_isolated(c: Candidate) -> Iterator[Finding]:
    """Warn of overlay fields that open the node to a pod, and of `host_network` if it bypasses network policies."""
    kubernetes = c.resolved.written.kubernetes
    rule = "W108 opens the node to a pod"
    if kubernetes.host_network and kubernetes.network_policies:
        reason = "NetworkPolicies do not hold there: who can reach the nodes can reach the ranks' ports"
        fix = "protect the nodes with a firewall, or remove it and give pods their NICs with kubernetes.rdma"
        yield Finding("kubernetes.host_network", True, rule, reason, fix)
    if kubernetes.overlay is not None:
        for path in _find_exposing_fields(kubernetes.overlay.model_dump(), "kubernetes.overlay"):
            yield Finding(path, None, rule, EXPOSING_FIELDS[path.rpartition(".")[2]], removal())


def _find_exposing_fields(value: Any, path: str) -> Iterator[str]:
    for key, inner in _children(value):
        if key in EXPOSING_FIELDS and inner not in (None, False):
            yield f"{path}.{key}"
        else:
            yield from _find_exposing_fields(inner, f"{path}.{key}")


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


RULES = (Rule("W108", "laid out", pods_stay_isolated),)

"""Warn where an overlay opens the node to a pod.

Pods see nothing of their node but what a field of the spec names. An overlay may let them, since some site needs it; it
should not go unseen in a review of the spec. What else a namespace admits is Pod Security's to say: `tidemill doctor`
asks the cluster.
"""

from collections.abc import Iterator
from typing import Any

from planner.problems.errors import Violation
from planner.problems.fix import removal
from planner.spec.pods import OverlaySpec

__all__ = ["exposed_by"]

# Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline)
EXPOSING = {
    "hostNetwork": "the pod then reaches all that its node reaches; kubernetes.host_network says it for units",
    "hostPID": "the pod could then see and kill the node's processes",
    "hostIPC": "the pod then shares memory with the processes of its node",
    "privileged": "a privileged container has all rights of its node",
    "hostPath": "the pod then has a folder of its node, and may write there unless it is mounted read-only",
}


def exposed_by(overlay: OverlaySpec | None) -> Iterator[Violation]:
    """Warn of each such field of `overlay`, by its path in the spec."""
    if overlay is not None:
        for path in _exposing(overlay.model_dump(), "kubernetes.overlay"):
            reason = EXPOSING[path.rpartition(".")[2]]
            yield Violation(path, None, "W108 opens the node to a pod", reason, removal())


def _exposing(value: Any, path: str) -> Iterator[str]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        if key in EXPOSING and inner not in (None, False):
            yield f"{path}.{key}"
        else:
            yield from _exposing(inner, f"{path}.{key}")

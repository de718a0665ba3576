"""Taints and tolerations, matched as Kubernetes matches them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stacks.kube.manifest import Manifest

__all__ = ["repelling_taints", "taint_text"]

REPELLING = {"NoSchedule", "NoExecute"}


def repelling_taints(node: Manifest, tolerations: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the taints of a node that keep away new pods with the given tolerations."""
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in REPELLING and not any(_tolerates(each, taint) for each in tolerations):
            yield taint


def taint_text(taint: Mapping[str, Any]) -> str:
    """Return a taint as `kubectl taint` writes it: `team=batch:NoSchedule`."""
    value = taint.get("value") or ""
    return f"{taint['key']}{'=' if value else ''}{value}:{taint['effect']}"


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return whether a toleration matches a taint. A toleration without effect or key matches every effect or key.

    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")

"""Taints that keep pods off a node, and tolerations that allow them, by the rules of Kubernetes' scheduler.

Source: github.com/kubernetes/kubernetes 19c6083b staging/src/k8s.io/api/core/v1/toleration.go, ToleratesTaint: an empty
effect or key matches all of them, Exists any value, and Equal the same value.
"""

from collections.abc import Sequence

from planner.spec.pods import TolerationSpec

__all__ = ["repelling_taint"]

REPELLING_EFFECTS = ("NoSchedule", "NoExecute")  # PreferNoSchedule only discourages


def repelling_taint(taints: Sequence[str], tolerations: Sequence[TolerationSpec]) -> str | None:
    """Return the first of `taints` that no toleration allows, as the spec writes it; None if there is none."""
    away = (taint for taint in taints if taint.rpartition(":")[2] in REPELLING_EFFECTS)
    return next((taint for taint in away if not any(_tolerates(each, taint) for each in tolerations)), None)


def _tolerates(toleration: TolerationSpec, taint: str) -> bool:
    key_value, _, effect = taint.rpartition(":")
    key, _, value = key_value.partition("=")
    if toleration.effect not in (None, effect) or toleration.key not in (None, key) or toleration.seconds is not None:
        return False  # a taint tolerated for some seconds evicts the pod afterwards
    return toleration.operator == "Exists" or (toleration.value or "") == value

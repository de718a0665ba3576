"""Whether an object is ready: `missing` returns None, or what is missing in a few words.

`MISSING` has a function for each kind. Other objects are ready when their condition `Ready` is true, or once they exist
if they have none. Each function looks at one state of the object, without waiting and without a cluster.

A status is only as new as its `observedGeneration`: until the kind's controller has seen the latest spec, the counts
are those of the spec before.
"""

from collections.abc import Callable
from typing import Any

from planner.facts import names
from stacks.kube.manifest import Manifest, list_conditions

__all__ = ["MISSING", "is_awaited", "is_off", "is_withheld", "missing", "num_withheld"]


def num_withheld(live: Manifest) -> int:
    """Return how many groups of a LeaderWorkerSet keep their present pod template until they are drained.

    Return 0 for any other kind.
    """
    rollout = (live.get("spec") or {}).get("rolloutStrategy") or {}
    return int((rollout.get("rollingUpdateConfiguration") or {}).get("partition", 0))


def is_withheld(before: Manifest | None, live: Manifest) -> bool:
    """Return whether `partition` keeps the groups of a LeaderWorkerSet at the pod template that it had `before`.

    False if the template is the same, if no group is wanted, or if there was no object before.
    """
    if before is None or not num_withheld(live) or not _wanted_replicas(live):
        return False
    return bool(before["spec"].get("leaderWorkerTemplate") != live["spec"].get("leaderWorkerTemplate"))


def missing(live: Manifest) -> str | None:
    """Return what `live` still lacks to be ready, such as `1 of 2 groups ready`; None if it is ready.

    A TidemillDeployment counts as ready once it exists. The condition in its status describes its units, which may take
    hours to change. Waiting for that would delay the update of the controller that changes them.
    """
    if _kind(live) == (names.DOMAIN, names.DEPLOYMENT_KIND):
        return None
    return MISSING.get(_kind(live), _ready_condition)(live)


def is_awaited(manifest: Manifest) -> bool:
    """Return whether an object of this kind runs pods, so that one can wait until it is ready."""
    return _kind(manifest) in MISSING


def is_off(live: Manifest) -> bool:
    """Return whether the object is scaled to 0, so that there is nothing to wait for."""
    return is_awaited(live) and not _wanted_replicas(live)


def _deployment(live: Manifest) -> str | None:
    """Return what a Deployment lacks to be ready; None if it lacks nothing.

    A Deployment is ready when every replica is updated and available, and no old replica is left.
    """
    old = _count(live, "replicas") - _count(live, "updatedReplicas")
    return (
        _unseen_spec(live)
        or _too_few(live, "updatedReplicas", "pods updated")
        or _too_few(live, "availableReplicas", "pods available")
        or (f"{old} pods of the version before still there" if old else None)
    )


def _stateful_set(live: Manifest) -> str | None:
    """Return what a StatefulSet lacks to be ready; None if it lacks nothing.

    A StatefulSet is ready when every replica is ready and of the newest revision. Under OnDelete only the pods
    themselves tell which revision is the newest.
    """
    status = _status(live)
    is_current = status.get("currentRevision") == status.get("updateRevision")
    is_by_hand = (live["spec"].get("updateStrategy") or {}).get("type") == "OnDelete"
    advice = ": delete its other pods together" if is_by_hand else ""
    return (
        _unseen_spec(live)
        or _too_few(live, "readyReplicas", "pods ready")
        or (None if is_current else _too_few(live, "updatedReplicas", f"pods updated{advice}"))
    )


def _leader_worker_set(live: Manifest) -> str | None:
    """Return what a LeaderWorkerSet lacks to be ready; None if it lacks nothing.

    A LeaderWorkerSet is ready when every group's leader and workers are ready and up to date. Groups that `partition`
    withholds from the newest template need not be up to date. If no group is wanted, nothing is missing.
    """
    if not _wanted_replicas(live):
        return None
    is_available = any(each["type"] == "Available" and each["status"] == "True" for each in list_conditions(live))
    return (
        _unseen_spec(live)
        or _too_few(live, "updatedReplicas", "groups updated", num_withheld(live))
        or _too_few(live, "readyReplicas", "groups ready")
        or (None if is_available else "an update of its groups is in progress")
    )


def _job(live: Manifest) -> str | None:
    """Return what a Job lacks to be complete; None if it is complete. A suspended job is not waited for."""
    text = {each["type"]: each for each in list_conditions(live) if each["status"] == "True"}
    if "Complete" in text or live["spec"].get("suspend"):
        return None
    return f"it has failed: {_condition_text(text['Failed'])}" if "Failed" in text else "it is not complete"


def _pod(live: Manifest) -> str | None:
    """Return what a Pod lacks to be ready; None if it is ready or has succeeded."""
    return None if _status(live).get("phase") == "Succeeded" else _ready_condition(live)


def _ready_condition(live: Manifest) -> str | None:
    """Return why an object's condition `Ready` is not true; None if it is true or absent."""
    ready = next((each for each in list_conditions(live) if each["type"] == "Ready"), None)
    return None if ready is None or ready["status"] == "True" else f"it is not ready: {_condition_text(ready)}"


def _condition_text(condition: dict[str, str]) -> str:
    text = condition.get("message") or condition.get("reason") or "its controller does not say why"
    return " ".join(text.split()).rstrip(".")


# (API group, kind) -> the function that says what is missing
MISSING: dict[tuple[str, str], Callable[[Manifest], str | None]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("batch", "Job"): _job,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("v1", "Pod"): _pod,
}


def _kind(live: Manifest) -> tuple[str, str]:
    return live["apiVersion"].partition("/")[0], live["kind"]


def _unseen_spec(live: Manifest) -> str | None:
    is_seen = _count(live, "observedGeneration") >= live["metadata"]["generation"]
    return None if is_seen else "not yet seen by its controller"


def _too_few(live: Manifest, field: str, what: str, num_spared: int = 0) -> str | None:
    """Return `1 of 2 WHAT` if the status counts fewer replicas in `field` than the spec wants; else None.

    `num_spared` of the wanted replicas may be missing.
    """
    found, wanted = _count(live, field), max(_wanted_replicas(live) - num_spared, 0)
    return f"{found} of {wanted} {what}" if found < wanted else None


def _wanted_replicas(live: Manifest) -> int:
    """Return the number of replicas in an object's spec, 1 by default."""
    return int(live["spec"].get("replicas", 1))


def _count(live: Manifest, field: str) -> int:
    """Return the count in `field` of an object's status; 0 if the field is absent."""
    return int(_status(live).get(field, 0))


def _status(live: Manifest) -> dict[str, Any]:
    return live.get("status") or {}

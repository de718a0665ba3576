"""The faults that a node reports by its conditions and labels, as `kubernetes.controller.heal` of a spec names them."""

from collections.abc import Mapping, Sequence

from stacks.kube.manifest import Manifest, list_conditions

__all__ = ["fault_statuses", "reported_fault"]


def fault_statuses(conditions: Sequence[str]) -> set[tuple[str, str]]:
    """Return (type, status) of each of `conditions`, which are TYPE, for the status True, or TYPE=STATUS."""
    return {(kind, status or "True") for kind, _, status in (each.partition("=") for each in conditions)}


def reported_fault(node: Manifest, settings: Mapping[str, Sequence[str]]) -> str | None:
    """Return the first of the `conditions` and `labels` of `settings` that a node has; None if it has none."""
    faults = fault_statuses(settings["conditions"])
    for each in list_conditions(node):
        if (each["type"], each["status"]) in faults:
            return f"the condition {each['type']}={each['status']}"
    labels = node["metadata"].get("labels") or {}
    own = {f"{key}={value}" for key, value in labels.items()}
    return next((f"the label {each}" for each in settings.get("labels", ()) if each in own), None)

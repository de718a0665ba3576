"""Writes to the cluster: a unit's replicas, labels and taints of nodes, a deployment's status, and events.

Replicas are set through `/scale`, under a field manager of our own, and no manifest has them. So neither Pulumi nor a
Git repository resets them or takes them for drift. (The server records that manager for its own kinds only, and for a
LeaderWorkerSet nobody: github.com/kubernetes/kubernetes/issues/131892.)
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from planner.facts import names
from stacks.controller.clock import timestamp
from stacks.controller.decide import Scale
from stacks.controller.lend import RECLAIMED, Mark, Marks
from stacks.controller.observe import UNIT_API_VERSION, UNIT_KIND, deployment_reference
from stacks.controller.report import Status
from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest, Reference, object_name

__all__ = [
    "FIELD_MANAGER",
    "delete_lost_pod",
    "mark_nodes",
    "scale",
    "taint_faulty_nodes",
    "write_changes",
    "write_event",
    "write_next_epoch",
    "write_status",
]

FIELD_MANAGER = "tidemill-controller"


def scale(api: Api, namespace: str, change: Scale) -> None:
    """Scale a unit's object up or down. Raises ProviderError if that is refused or the cluster cannot be reached."""
    unit = Reference(UNIT_API_VERSION, UNIT_KIND, namespace, change.unit)
    api.merge(unit, {"spec": {"replicas": int(change.is_on)}}, part="scale", manager=FIELD_MANAGER)


def mark_nodes(api: Api, plan: str, nodes: Iterable[str], marks: Marks) -> Iterator[tuple[str, ProviderError]]:
    """Label and taint the plan's `nodes` as `marks` say. Yield (node, error) for each node that cannot be marked.

    A node that another plan has marked is left alone, with an error.

    Raises ProviderError if the nodes cannot be listed.
    """
    selector = f"{names.PLAN_LABEL}={plan},{names.NODE_LABEL}"
    marked = {object_name(each): each for each in api.list_all("v1", "Node", "", labelSelector=selector)}
    for name in nodes:
        mark, live = marks.lookup(name), marked.get(name)
        if mark == (live["metadata"]["labels"][names.NODE_LABEL] if live else None):
            continue
        try:
            _mark_one_node(api, plan, name, live or api.get(Reference("v1", "Node", "", name)), mark)
        except ProviderError as error:
            yield name, error


def taint_faulty_nodes(
    api: Api, plan: str, nodes: Iterable[Manifest], faulty: Collection[str], now: float
) -> Iterator[tuple[str, ProviderError | None]]:
    """Taint the `faulty` of `nodes`, and remove the plan's taint from the others.

    Yield (node, error or None) for each node that has to change. A node that another plan has tainted is left alone.
    """
    taint = {"key": names.FAULTY_TAINT, "value": plan, "effect": "NoSchedule", "timeAdded": timestamp(now)}
    for node in nodes:
        name, taints = object_name(node), node["spec"].get("taints") or []
        ours = [each for each in taints if each["key"] == names.FAULTY_TAINT]
        if (name in faulty) == bool(ours) or any(each.get("value") != plan for each in ours):
            continue
        kept = [each for each in taints if each not in ours]
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        added = [taint] if name in faulty else []
        changes = {"metadata": version, "spec": {"taints": kept + added or None}}
        try:
            api.merge(Reference("v1", "Node", "", name), changes, manager=FIELD_MANAGER)
            yield name, None
        except ProviderError as error:
            yield name, error


def delete_lost_pod(api: Api, pod: Manifest) -> None:
    """Delete a pod whose node no longer answers. Raises ProviderError if that is refused."""
    api.delete(Reference.from_manifest(pod), pod["metadata"]["uid"], immediately=True)


def _mark_one_node(api: Api, plan: str, name: str, live: Manifest | None, mark: Mark | None) -> None:
    """Write a node's label and taint in one request, which fails if the node has changed since it was read.

    A node that has been deleted is skipped. Raises ProviderError if the write fails or another plan has marked the
    node.
    """
    if live is None:
        return
    other = _other_plan(live, plan)
    if other:
        raise ProviderError(f"the plan {other} has marked {name}: plan one of the two again without this node")
    taints = [each for each in live["spec"].get("taints") or [] if each["key"] != names.RECLAIMED_TAINT]
    if mark == RECLAIMED:
        taints.append({"key": names.RECLAIMED_TAINT, "value": plan, "effect": "NoSchedule"})
    labels = {names.PLAN_LABEL: plan if mark else None, names.NODE_LABEL: mark}
    metadata = {"resourceVersion": live["metadata"]["resourceVersion"], "labels": labels}
    changes = {"metadata": metadata, "spec": {"taints": taints or None}}
    api.merge(Reference("v1", "Node", "", name), changes, manager=FIELD_MANAGER)


def _other_plan(node: Manifest, plan: str) -> str | None:
    """Return the name of another plan that has marked a node, by its label or its taint; None if none has."""
    taints = [each.get("value") for each in node["spec"].get("taints") or [] if each["key"] == names.RECLAIMED_TAINT]
    marked = [(node["metadata"].get("labels") or {}).get(names.PLAN_LABEL), *taints]
    return next((each for each in marked if each and each != plan), None)


def write_status(api: Api, deployment: Manifest, status: Status) -> None:
    """Write `status` to the deployment's object, unless it is there already. Raises ProviderError if that fails."""
    if deployment.get("status") == status:
        return
    gone = dict.fromkeys((deployment.get("status") or {}).keys() - status.keys())
    _merge_status(api, deployment, gone | status)


def write_changes(api: Api, deployment: Manifest, changes: Sequence[Mapping[str, Any]]) -> None:
    """Write the field `changes` of the deployment's status, and no other. Raises ProviderError if that fails."""
    _merge_status(api, deployment, {"changes": changes})


def _merge_status(api: Api, deployment: Manifest, fields: Mapping[str, Any]) -> None:
    reference = deployment_reference(deployment["metadata"]["namespace"], object_name(deployment))
    api.merge(reference, {"status": fields}, part="status", manager=FIELD_MANAGER)


def write_next_epoch(api: Api, deployment: Manifest, unit: str, content: str) -> None:
    """Create or update the ConfigMap with the document of a unit's next epoch. Raises ProviderError if that fails.

    The ConfigMap belongs to the deployment's object, and is deleted with it. It has no
    `app.kubernetes.io/instance`, by which Argo CD would take it for its own and prune it.
    """
    owner = deployment["metadata"]
    reference = Reference("v1", "ConfigMap", owner["namespace"], names.epoch_config(unit))
    data = {"data": {names.NEXT_EPOCH_FILE: content}}
    if api.get(reference) is not None:
        api.merge(reference, data, manager=FIELD_MANAGER)
        return
    metadata = {
        "name": reference.name,
        "namespace": reference.namespace,
        "labels": {names.PLAN_LABEL: owner["name"], names.UNIT_LABEL: unit},
        "ownerReferences": [_owner_reference(owner)],
    }
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata} | data, manager=FIELD_MANAGER)


def _owner_reference(owner: Manifest) -> Manifest:
    about = {"name": owner["name"], "uid": owner["uid"]}
    return {"apiVersion": names.DEPLOYMENT_API_VERSION, "kind": names.DEPLOYMENT_KIND} | about


def write_event(
    api: Api, deployment: Manifest, reason: str, message: str, now: float, *, is_warning: bool = False
) -> None:
    """Write an event about the deployment, for `kubectl describe`. Raises ProviderError if that fails."""
    metadata = deployment["metadata"]
    name = f"{metadata['name']}.{secrets.token_hex(8)}"
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": _owner_reference(metadata) | {"namespace": metadata["namespace"]},
            "type": "Warning" if is_warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": timestamp(now),
            "lastTimestamp": timestamp(now),
            "count": 1,
        },
        manager=FIELD_MANAGER,
    )

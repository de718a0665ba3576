"""Kueue's quota for the free nodes: their number times the resources of each, in a flavor of its own.

    ResourceFlavor lent, nodeLabels tidemill.dev/node: free   ->   its quotas in the ClusterQueue follow the free nodes

So Kueue admits no more jobs than free nodes hold, and none once all are to be left. A smaller quota ends no job that
was admitted: the notice, the taint and the scheduler's preemption are for those (`lend.py`).

Source of the fields: kubernetes-sigs/kueue @013c8f25 apis/kueue/v1beta2/clusterqueue_types.go; v1beta1 has the same.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from stacks.controller.act import FIELD_MANAGER
from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.quantities import amounts

__all__ = ["groups_with_quota", "update_quota"]

GROUP, KIND = "kueue.x-k8s.io", "ClusterQueue"


def update_quota(api: Api, settings: Mapping[str, Any], num_free: int) -> str | None:
    """Set the flavor's quotas to the resources of `num_free` nodes. Return the change in words, or None.

    Raises ProviderError if the API server refuses or cannot be reached.
    """
    versions = api.versions(GROUP)
    if not versions:
        raise ProviderError("the cluster has no Kueue")
    reference = Reference(f"{GROUP}/{versions[0]}", KIND, "", settings["clusterQueue"])
    queue = api.get(reference)
    if queue is None:
        raise ProviderError(f"there is no ClusterQueue {settings['clusterQueue']}")
    per_node = {name: int(number) for name, _, number in (each.partition("=") for each in settings["perNode"])}
    quotas = {name: num_free * number for name, number in per_node.items()}
    groups = groups_with_quota(queue, settings["flavor"], quotas)
    if groups is None:
        return None
    version = {"resourceVersion": queue["metadata"]["resourceVersion"]}
    api.merge(reference, {"metadata": version, "spec": {"resourceGroups": groups}}, manager=FIELD_MANAGER)
    words = ", ".join(f"{number} {name}" for name, number in quotas.items())
    return f"the quota of {settings['clusterQueue']} in {settings['flavor']} is {words}"


def groups_with_quota(queue: Manifest, flavor: str, quotas: Mapping[str, int]) -> list[Any] | None:
    """Return the ClusterQueue's resource groups with `quotas` set in `flavor`; None if they are set already.

    The server replaces the list as a whole. Raises ProviderError if the flavor lacks one of the resources.
    """
    groups: list[Any] = deepcopy(queue["spec"].get("resourceGroups") or [])
    found = {
        resource["name"]: resource
        for group in groups
        for each in group["flavors"]
        if each["name"] == flavor
        for resource in each["resources"]
    }
    unknown = sorted(quotas.keys() - found.keys())
    if unknown:
        name = queue["metadata"]["name"]
        raise ProviderError(f"ClusterQueue {name} has no quota of {', '.join(unknown)} in a flavor {flavor}")
    has = amounts({name: found[name]["nominalQuota"] for name in quotas})
    if has == quotas:
        return None
    for name, number in quotas.items():
        found[name]["nominalQuota"] = str(number)
    return groups

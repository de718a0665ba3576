"""Merge a patch into an object of Kubernetes as `kubectl patch` does.

A strategic merge, for Kubernetes' own kinds and every pod template:

    mapping            key by key; null removes a key
    list with a key    item by item: `MERGE_KEYS` has the field that identifies items; new ones come last
    any other list     replaced
    `$patch: replace`  in a mapping, or as an item of a list: the rest of the patch replaces the mapping or list
    `$patch: delete`   in a mapping: empties it; in an item of a list: removes the item with the same key

A JSON merge (RFC 7386), for custom kinds, has no keys and no directives: each list is replaced.

Merging nothing changes nothing, and merging twice is merging once. The base is never changed.

Source: github.com/kubernetes/apimachinery 6e531d37 pkg/util/strategicpatch/patch.go: mergeMap, mergeSlice
"""

from collections.abc import Mapping, Sequence
from typing import Any

MergeKeys = Mapping[str, str] | None  # list field -> the key that identifies its items; None: JSON merge

DIRECTIVE, DIRECTIVES = "$patch", ("replace", "delete")
JSON_MERGE = None

# Source: github.com/kubernetes/api 10b39a39 core/v1/types.go, `patchMergeKey` of PodSpec, Container, ServiceSpec and
# ServiceAccount. Tolerations and the like have none, and are replaced.
POD_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
}
MERGE_KEYS: Mapping[str, Mapping[str, str]] = {
    "Pod": POD_KEYS,
    "Deployment": POD_KEYS,
    "StatefulSet": POD_KEYS,
    "Service": {"ports": "port"},
    "ServiceAccount": {"imagePullSecrets": "name", "secrets": "name"},
    "Namespace": {},
    "NetworkPolicy": {},
    "PodDisruptionBudget": {},
}


def keys_of_kind(kind: str) -> MergeKeys:
    """Return list field -> the key of its items, for objects of `kind`; `JSON_MERGE` for kinds of custom resources."""
    return MERGE_KEYS.get(kind, JSON_MERGE)


def merge_patch(base: Mapping[str, Any], patch: Mapping[str, Any], keys: MergeKeys) -> dict[str, Any]:
    """Return the mapping `base` with `patch` merged into it. `keys` says which lists are merged item by item.

    A null in the patch removes its key. The directive `delete` empties the mapping, `replace` ignores `base`.
    """
    directive = patch.get(DIRECTIVE) if keys is not JSON_MERGE else None
    if directive == "delete":
        return {}
    result = {} if directive == "replace" else dict(base)
    for field, value in patch.items():
        if field == DIRECTIVE and keys is not JSON_MERGE:
            continue
        if value is None:
            result.pop(field, None)
        else:
            result[field] = _merged_value(result.get(field), value, field, keys)
    return result


def _merged_value(base: Any, patch: Any, field: str, keys: MergeKeys) -> Any:
    if isinstance(patch, dict):
        return merge_patch(base if isinstance(base, dict) else {}, patch, keys)
    if isinstance(patch, list) and keys is not JSON_MERGE and field in keys:
        return _merged_items(base if isinstance(base, list) else [], patch, keys[field], keys)
    return patch


def _merged_items(base: Sequence[Any], patch: Sequence[Any], key: str, keys: MergeKeys) -> list[Any]:
    """Return the list `base` with `patch` merged into it, items with the same `key` into one; new items come last."""
    result = [] if {DIRECTIVE: "replace"} in patch else list(base)
    for item in patch:
        if item == {DIRECTIVE: "replace"}:
            continue
        place = next((index for index, each in enumerate(result) if _has(each, key, item)), len(result))
        if item.get(DIRECTIVE) == "delete":
            del result[place : place + 1]
        else:
            result[place : place + 1] = [merge_patch(result[place] if place < len(result) else {}, item, keys)]
    return result


def _has(item: Any, key: str, other: Mapping[str, Any]) -> bool:
    return isinstance(item, dict) and key in item and item[key] == other.get(key)

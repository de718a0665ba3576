"""The rules of `kubernetes.overlay`: it must not change what the plan decides, and must patch objects of the plan.

An overlay may set everything else. The API server judges whether it is valid: `tidemill doctor` and previews ask it.

The constants below have the shape of rendered objects, with `PLANNED` in place of each planned value. A patch may
neither write a planned value nor remove a mapping or item that contains one.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from planner.facts import names
from planner.problems.finding import Finding
from planner.problems.fix import did_you_mean, removal
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.strategic_merge import DIRECTIVE, DIRECTIVES, JSON_MERGE, POD_KEYS, MergeKeys, keys_of_kind

PLANNED = "as planned"
LAUNCH_FOLDER = names.MOUNTED[0]
PlannedFields = dict[str, Any]  # the fields that the plan decides: PLANNED in place of their values
# These identify an object, or block its deletion: an apply or a delete would wait for ever.
METADATA: PlannedFields = {
    **dict.fromkeys(("name", "namespace", "generateName", "deletionTimestamp"), PLANNED),
    **dict.fromkeys(("finalizers", "ownerReferences"), PLANNED),
    "labels": dict.fromkeys(names.labels("", "", "", "decode"), PLANNED),
    "annotations": dict.fromkeys(map(names.digest_annotation, ("launch", "unit", "expert-map")), PLANNED),
}
CONTAINER: PlannedFields = {
    "env": [{"name": each, "value": PLANNED, "valueFrom": PLANNED} for each in names.CONTAINER_VARIABLES],
    "resources": {"limits": {}, "requests": {}},  # a patch may add to them, but not remove them
    "volumeMounts": [
        {"mountPath": LAUNCH_FOLDER, **dict.fromkeys(("name", "subPath", "subPathExpr", "readOnly"), PLANNED)}
    ],
}
POD_SPEC: PlannedFields = {
    **dict.fromkeys(("nodeName", "restartPolicy", "activeDeadlineSeconds"), PLANNED),
    "containers": [{"name": each, **CONTAINER} for each in names.POD_CONTAINERS],
    "initContainers": [{"name": each, **CONTAINER} for each in names.POD_CONTAINERS],
    "volumes": [{"name": "launch", "projected": PLANNED}],
}
POD: PlannedFields = {"metadata": METADATA, "spec": POD_SPEC}
# Units run on their planned nodes, never two on the same node.
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": PLANNED}
UNIT_POD = POD | {"spec": POD_SPEC | {"affinity": {"nodeAffinity": REQUIRED, "podAntiAffinity": REQUIRED}}}
WORKLOAD_FIELDS = ("replicas", "selector", "startupPolicy", "podManagementPolicy", "updateStrategy", "serviceName")
OTHER_FIELDS = ("minAvailable", "maxUnavailable", "channel", "secretName", "uris")
SERVICE_FIELDS = ("externalName", "clusterIP", "clusterIPs", "publishNotReadyAddresses")
OBJECT_SPEC = dict.fromkeys((*WORKLOAD_FIELDS, *OTHER_FIELDS, *SERVICE_FIELDS), PLANNED)
OBJECT: PlannedFields = {**dict.fromkeys(("apiVersion", "kind", "status"), PLANNED), "metadata": METADATA}
GROUP = {**dict.fromkeys(("size", "leaderTemplate", "restartPolicy"), PLANNED), "workerTemplate": UNIT_POD}
SPECS_BY_KIND: Mapping[str, PlannedFields] = {
    "LeaderWorkerSet": {"leaderWorkerTemplate": GROUP},
    "StatefulSet": {"template": UNIT_POD},
    "Deployment": {"template": POD},
    "NetworkPolicy": {"podSelector": PLANNED},
}
PODS = ("kubernetes.overlay.unit_pod", "kubernetes.overlay.gateway_pod")
DECIDED = "the plan decides it, or finds the object by it"
REPLACED = "lists of this kind are replaced as a whole, and what the plan wrote would go; unit_pod merges them"
DICTIONARIES = ("labels", "annotations", "nodeSelector", "matchLabels")  # dictionaries with keys of the user's choice
Objects = Sequence[Mapping[str, Any]]
Place = tuple[str, ...]


def pod_patches_keep_plan(c: ValidValues, where: str) -> Iterator[Finding]:
    """Reject patches that change planned fields of pods: the cluster would run something other than the plan."""
    patch: Mapping[str, Any] = c[where]
    yield from _check_patch(where, patch, UNIT_POD if where == PODS[0] else POD, keys_of_kind("Pod"))


def object_patches_keep_plan(c: ValidValues) -> Iterator[Finding]:
    """Reject patches that change planned fields of objects, names and labels included."""
    objects: Objects = c["kubernetes.overlay.objects"]
    for index, each in enumerate(objects):
        kind, patch = each.get("kind"), each.get("patch")
        if isinstance(kind, str) and isinstance(patch, dict):
            planned_fields = OBJECT | {"spec": OBJECT_SPEC | SPECS_BY_KIND.get(kind, {})}
            yield from _check_patch(
                f"kubernetes.overlay.objects.{index}.patch", patch, planned_fields, keys_of_kind(kind)
            )


def patched_objects_exist(c: ValidValues, item: str) -> Iterator[Finding]:
    """Reject patches of objects that this plan does not render: they would be ignored silently."""
    kind, name = c[f"{item}.kind"], c[f"{item}.name"]
    of_kind = _rendered_names(c).get(kind, ())
    if of_kind and name in (None, *of_kind):
        return
    rule, reason = "S304 must be of an object that is rendered", f"this plan has no {kind}{f' {name}' if name else ''}"
    if of_kind:
        yield Finding(f"{item}.name", name, rule, reason, did_you_mean(name, of_kind))
    else:
        yield Finding(f"{item}.kind", kind, rule, reason, removal(item, words="remove the item"))


def _rendered_names(c: ValidValues) -> Mapping[str, Sequence[str]]:
    """Return kind -> names of the plan's objects of that kind, for the kinds that an overlay may patch."""
    plan, namespace, disruptions = c["name"], c["kubernetes.namespace"], c["kubernetes.disruptions"]
    units = [names.unit_name(plan, phase, index) for phase, count in c.num_units.items() for index in range(count)]
    gateway, runtime = names.gateway_name(plan), names.runtime_account(plan)
    controller = [names.controller_name(plan)] if c.get("kubernetes.controller.pace") is not None else []
    has_budgets = c.gpu.device != "cpu" or disruptions is not None
    budgets = [names.phase_budget(plan, phase) for phase in c.num_units] if has_budgets else []
    joins_nodes = c.gpu.nvlink_leaves_node and c["kubernetes.compute_domain"] is not False
    return {
        names.UNIT_OBJECTS[c["kubernetes.unit_kind"]][1]: units,
        "Deployment": [gateway, *controller],
        "Service": [gateway, names.registry_name(plan), *units],
        "ServiceAccount": [gateway, runtime, *controller],
        "Namespace": [namespace] if c["kubernetes.create_namespace"] else [],
        "PodDisruptionBudget": [*budgets, gateway],
        "PodMonitor": [gateway, runtime] if c["kubernetes.monitors"] else [],
        "NetworkPolicy": [plan, gateway, *units, *controller] if c["kubernetes.network_policies"] else [],
        "Certificate": [gateway, *units] if c.get("kubernetes.tls.issuer") is not None else [],
        "ComputeDomain": units if joins_nodes else [],
    }


def _check_patch(
    where: str, patch: Mapping[str, Any], planned_fields: Mapping[str, Any], keys: MergeKeys
) -> Iterator[Finding]:
    """Yield a finding for each part of a patch that changes one of `planned_fields`, or that cannot be merged.

    `where` is the path of the patch; `keys` tells which lists are merged by item.
    """
    for place in _find_planned_changes(planned_fields, patch, keys):
        field = next((each for each in reversed(place) if not each.isdecimal()), where.rpartition(".")[2])
        reason = REPLACED if keys is JSON_MERGE and field in POD_KEYS else DECIDED
        yield Finding(".".join((where, *place)), None, f"S460 must leave {field} alone", reason, removal())
    for place in _find_hiding_mounts(patch):
        rule, fix = f"S460 must leave {LAUNCH_FOLDER} alone", removal(words="remove the mount")
        yield Finding(".".join((where, *place)), None, rule, "the launch file is mounted there", fix)
    if keys is not JSON_MERGE:
        yield from _find_unmergeable(where, patch, "", keys)


def _find_planned_changes(planned_fields: Any, patch: Any, keys: MergeKeys, field: str = "") -> Iterator[Place]:
    """Yield the path, as keys, to each part of `patch` that changes or removes one of `planned_fields`."""
    if isinstance(planned_fields, dict) and isinstance(patch, dict) and (DIRECTIVE not in patch or keys is JSON_MERGE):
        for key in (each for each in patch if each in planned_fields):
            yield from ((key, *below) for below in _find_planned_changes(planned_fields[key], patch[key], keys, key))
    elif isinstance(planned_fields, list) and isinstance(patch, list) and keys is not JSON_MERGE:
        key = keys[field]
        for index, item in enumerate(patch):
            if item == {DIRECTIVE: "replace"}:
                yield (str(index),)
            for planned in planned_fields if isinstance(item, dict) else ():
                if item.get(key) == planned[key]:
                    rest = {each: below for each, below in planned.items() if each != key}
                    yield from ((str(index), *below) for below in _find_planned_changes(rest, item, keys))
    else:
        yield ()


def _find_hiding_mounts(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the path, as keys, to each volume mount of a planned container that may hide its launch file."""
    is_planned = isinstance(value, dict) and value.get("name") in names.POD_CONTAINERS
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if is_planned and key == "volumeMounts" and isinstance(inner, list):
            yield from ((*place, key, str(index)) for index, each in enumerate(inner) if _hides_launch_file(each))
        else:
            yield from _find_hiding_mounts(inner, (*place, str(key)))


def _hides_launch_file(mount: Any) -> bool:
    path = mount.get("mountPath") if isinstance(mount, dict) else None
    if not isinstance(path, str) or path == LAUNCH_FOLDER:
        return False
    if ".." in path.split("/"):  # its target depends on links in the image
        return True
    # The kubelet takes a relative path from the root.
    parts, launch = (PurePosixPath(posixpath.normpath("/" + each.lstrip("/"))).parts for each in (path, LAUNCH_FOLDER))
    return all(one == other for one, other in zip(parts, launch, strict=False))


def _find_unmergeable(where: str, value: Any, field: str, keys: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each unsupported directive, and for each list item without a merge key, below `value`.

    Findings quote no value: it may be secret.
    """
    if isinstance(value, dict):
        for key, below in value.items() if field not in DICTIONARIES else ():
            if key.startswith("$") and (key != DIRECTIVE or below not in DIRECTIVES):
                rule = f"S461 must be {DIRECTIVE}: {' or '.join(DIRECTIVES)}"
                yield Finding(f"{where}.{key}", None, rule, "other directives of patches are not followed", removal())
            else:
                yield from _find_unmergeable(f"{where}.{key}", below, key, keys)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _find_unmergeable(f"{where}.{index}", item, "", keys)
        if field in keys and not _has_merge_key(item, keys[field]):
            path, reason = f"{where}.{index}.{keys[field]}", f"{field} are merged by it"
            fix = f"write it, or {DIRECTIVE}: replace as an item alone"
            yield Finding(path, None, "S202 is required", reason, fix)


def _has_merge_key(item: Any, key: str) -> bool:
    """Return whether a list's item has its merge key, or is the directive that replaces the whole list."""
    if not isinstance(item, dict) or item == {DIRECTIVE: "replace"}:
        return isinstance(item, dict)
    return type(item.get(key)) in (str, int) and item.get(DIRECTIVE) != "replace"


RULES = (
    Rule("S202 S460 S461", "fields", pod_patches_keep_plan, PODS),
    Rule("S460", "fields", object_patches_keep_plan),
    Rule("S304", "resolved", patched_objects_exist, ["kubernetes.overlay.objects.*"]),
)

"""The rules about `kubernetes.patches`: of which objects, and what they leave alone.

`layout_rules.py` asks them with the others. A patch may change whatever the plan does not decide. What it does decide,
or finds its objects by, stays: names, counts, selectors and our labels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from planner.facts import names
from planner.facts.catalog import Gpu
from planner.facts.terms import Phase
from planner.problems.fix import HERE, Fix, did_you_mean, nearest, removal
from planner.spec.merge_keys import MERGE_KEYS, PORT_KEYS
from planner.spec.pods import PATCHED_KINDS
from planner.spec.rule import Broken, Partial, Rule, declare_in

__all__ = ["RULES"]

# What makes an object another one, or keeps it when it should go. An apply or a delete would wait for ever.
OF_SERVERS = ("finalizers", "ownerReferences", "generateName", "deletionTimestamp")
DECIDED = {
    ("apiVersion",),
    ("kind",),
    ("status",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("spec", "replicas"),
    ("spec", "selector"),
    ("spec", "minAvailable"),
    ("spec", "maxUnavailable"),
    ("spec", "numNodes"),
    ("spec", "channel"),
    ("spec", "leaderWorkerTemplate", "size"),
    ("spec", "leaderWorkerTemplate", "leaderTemplate"),
    ("spec", "leaderWorkerTemplate", "restartPolicy"),
    ("spec", "startupPolicy"),
    ("spec", "podManagementPolicy"),
    ("spec", "updateStrategy"),
    ("spec", "serviceName"),
    ("spec", "secretName"),
    ("spec", "uris"),
}
# What a plan's pods are made of. A patch may change what is in these, and take none of them away.
TEMPLATES = (("spec", "template"), ("spec", "leaderWorkerTemplate", "workerTemplate"))
DECIDED |= {(*above, "metadata", field) for above in ((), *TEMPLATES) for field in OF_SERVERS}
PLANNED = DECIDED | {(*template, part) for template in TEMPLATES for part in ("metadata", "spec")}
PLANNED_LISTS = ("containers", "initContainers", "env", "volumes", "volumeMounts", "ports", "resourceClaims")
PLANNED_OF_CONTAINERS = ("image", "command", "args", "resources")
# Pods of units stand on the nodes that were planned, and none of them beside another unit's.
UNITS = {"LeaderWorkerSet": TEMPLATES[1], "StatefulSet": TEMPLATES[0]}
OWN_NODES = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
APART = ("spec", "affinity", "podAntiAffinity")
OUR_LABELS = ("app.kubernetes.io/", names.DOMAIN)
MARKS = ("labels", "annotations", "matchLabels")
TEXTS = (*MARKS, "nodeSelector")  # mappings of any keys to text: a key `env` in them is no list of variables
NOT_RENDERED = "S461 must be a kind that is rendered"
MAX_LISTED = 4

Patches = Sequence[Mapping[str, Any]]
Path = tuple[str, ...]

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("kubernetes.patches")
def patches_leave_alone_what_is_planned(patches: Patches) -> Iterator[Broken]:
    """Else the cluster would run something that no plan says."""
    for index, each in enumerate(patches):
        patch, template = each.get("patch"), UNITS.get(each.get("kind", ""))
        decided = DECIDED | ({(*template, *OWN_NODES)} if template else set())
        planned = PLANNED | decided | ({(*template, *APART)} if template else set())
        for path in _decided(patch, decided, planned) if isinstance(patch, dict) else ():
            where = ".".join(["kubernetes.patches", str(index), "patch", *path])
            rule = f"S460 must leave {'.'.join(path)} alone"
            yield Broken(
                rule, "the plan sets this field, or uses it to find the object", removal(), where, _at(patch, path)
            )


@_reads("kubernetes.patches")
def services_lead_to_our_pods(patches: Patches) -> Iterator[Broken]:
    """A Service of type ExternalName sends clients to another host, whatever it selects."""
    for index, each in enumerate(patches):
        patch = each.get("patch")
        spec = patch.get("spec") if isinstance(patch, dict) else None
        if each.get("kind") == "Service" and isinstance(spec, dict) and spec.get("type") == "ExternalName":
            where = f"kubernetes.patches.{index}.patch.spec.type"
            reason = "such a Service would send clients to a host outside the plan"
            yield Broken("S460 must not be ExternalName", reason, removal(), where, spec["type"])


@_reads("kubernetes.patches")
def patches_have_no_directives(patches: Patches) -> Iterator[Broken]:
    """The merge of `manifests/patches.py` would write `$patch` into the object like any other key."""
    for index, each in enumerate(patches):
        for where, value in _directives(f"kubernetes.patches.{index}.patch", each.get("patch")):
            reason = "patches have no directives: null removes a key, and list items are merged by name"
            yield Broken("S460 must not be a patch directive", reason, removal(), where, value)


@_reads("kubernetes.patches")
def patched_containers_stay_whole(patches: Patches) -> Iterator[Broken]:
    """Refuse patches of a container's image or GPUs: it would no longer be what was planned."""
    for index, each in enumerate(patches):
        for path in _taken_from_containers(each.get("patch"), ()):
            where = ".".join(["kubernetes.patches", str(index), "patch", *path])
            yield Broken(f"S460 must leave {path[-1]} alone", "the plan sets this field", removal(), where)


@_reads("kubernetes.patches")
def patched_items_have_names(patches: Patches) -> Iterator[Broken]:
    """Lists are merged by these names. A list with a nameless item would replace the plan's."""
    for index, each in enumerate(patches):
        yield from _unnamed(f"kubernetes.patches.{index}.patch", each.get("patch"))


@_reads(
    "kubernetes.patches",
    "kubernetes.unit_kind",
    "kubernetes.monitors",
    "kubernetes.create_namespace",
    "kubernetes.network_policies",
)
def patches_are_of_kinds_that_are_rendered(
    patches: Patches, unit_kind: str, monitors: bool, create_namespace: bool, network_policies: bool
) -> Iterator[Broken]:
    """A patch of nothing would be lost without a word."""
    absent: dict[str, tuple[str, Fix]] = {}
    _, own = names.UNIT_OBJECTS[unit_kind]
    for _, other in names.UNIT_OBJECTS.values():
        if other != own:
            absent[other] = f"kubernetes.unit_kind is {unit_kind}", nearest(own)
    for kind, field, is_on in (
        ("PodMonitor", "kubernetes.monitors", monitors),
        ("Namespace", "kubernetes.create_namespace", create_namespace),
        ("NetworkPolicy", "kubernetes.network_policies", network_policies),
    ):
        if not is_on:
            absent[kind] = f"{field} is false", Fix(f"write {field}: true", ({field: True},))
    for index, each in enumerate(patches):
        if each.get("kind") in absent:
            reason, fix = absent[each["kind"]]
            yield Broken(NOT_RENDERED, reason, fix, f"kubernetes.patches.{index}.kind", each["kind"])


@_reads(
    "kubernetes.patches",
    "cluster.device",
    "kubernetes.disruptions",
    "kubernetes.compute_domain",
    "kubernetes.tls.issuer?",
)
def patches_are_of_kinds_that_this_plan_has(
    patches: Patches, gpu: Gpu, disruptions: int | None, compute_domain: bool | None, issuer: str | None
) -> Iterator[Broken]:
    """The same of kinds that are rendered for some GPUs, or where an issuer is named."""
    absent = {"Certificate"} if issuer is None else set()
    if gpu.device == "cpu" and disruptions is None:
        absent.add("PodDisruptionBudget")
    if not gpu.nvlink_leaves_node or compute_domain is False:
        absent.add("ComputeDomain")
    for index, each in enumerate(patches):
        if each.get("kind") in absent:
            path = f"kubernetes.patches.{index}"
            fix = removal(path, words="remove the patch")
            yield Broken(NOT_RENDERED, "this plan has none", fix, f"{path}.kind", each["kind"])


@_reads("kubernetes.patches", "name", "spec.units", "kubernetes.namespace", "kubernetes.controller.pace?")
def patches_are_of_objects_that_are_rendered(
    patches: Patches, plan: str, num_units: Mapping[Phase, int], namespace: str, pace: float | None
) -> Iterator[Broken]:
    """A patch of nothing would be lost without a word."""
    known = _object_names(plan, num_units, namespace, has_controller=pace is not None)
    for index, each in enumerate(patches):
        kind, name = each.get("kind"), each.get("name")
        if isinstance(each, Partial) or kind not in known or name is None or name in known[kind]:
            continue
        rule = f"S462 must be the name of a {kind} that is rendered ({_some(known[kind])})"
        fix = did_you_mean(name, known[kind]) if len(known[kind]) <= MAX_LISTED else nearest(known[kind][0])
        yield Broken(rule, "the patch would have no effect", fix, f"kubernetes.patches.{index}.name", name)


def _object_names(
    plan: str, num_units: Mapping[Phase, int], namespace: str, *, has_controller: bool
) -> dict[str, list[str]]:
    units = [names.unit_name(plan, phase, index) for phase, count in num_units.items() for index in range(count)]
    gateway, runtime = names.gateway_name(plan), names.runtime_account(plan)
    controller = [names.controller_name(plan)] if has_controller else []
    found = {
        "Deployment": [gateway, *controller],
        "Service": [gateway, names.registry_name(plan), *units],
        "ServiceAccount": [gateway, runtime, *controller],
        "Namespace": [namespace],
        "PodDisruptionBudget": [*(names.phase_budget(plan, phase) for phase in num_units), gateway],
        "PodMonitor": [gateway, runtime],
        "NetworkPolicy": [plan, gateway, *units, *controller],
        "Certificate": [gateway, *units],
    }
    return {kind: found.get(kind, units) for kind in PATCHED_KINDS}


def _some(known: Sequence[str]) -> str:
    more = len(known) - MAX_LISTED
    return f"{', '.join(known[:MAX_LISTED])} and {more} more" if more > 0 else ", ".join(known)


def _taken_from_containers(value: Any, path: Path) -> Iterator[Path]:
    """Yield the path of each null, at or below `path`, that takes away what the plan says of a container.

    A single resource may go: a claim may stand for GPUs in its place.
    """
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        here = (*path, str(key))
        is_of_container = path[-2:-1] in (("containers",), ("initContainers",))
        if inner is None and is_of_container and key in PLANNED_OF_CONTAINERS:
            yield here
        else:
            yield from _taken_from_containers(inner, here)


def _unnamed(path: str, value: Any, field: str = "") -> Iterator[Broken]:
    """Yield what is wrong, anywhere in `value`, with lists whose items Kubernetes knows by a key."""
    if isinstance(value, dict) and field not in TEXTS:
        for key, below in value.items():
            yield from _unnamed(f"{path}.{key}", below, key)
            if _keys_of(key, below) and not (isinstance(below, list) and below):
                yield from _no_items(f"{path}.{key}", below, key)
    if not isinstance(value, list):
        return
    keys = _keys_of(field, value)
    for index, item in enumerate(value):
        where = f"{path}.{index}"
        yield from _unnamed(where, item)
        if keys:
            drop = removal(where, words="remove the item") if len(value) > 1 else removal(path)
            yield from _odd_item(where, item, field, keys, drop)
    if len(keys) == 1:
        yield from _twice(path, value, keys[0], field)


def _keys_of(field: str, items: Any) -> tuple[str, ...]:
    """Return the keys of which each item of the list `field` needs one; none for lists that are replaced."""
    if field != "ports":
        return (MERGE_KEYS[field],) if field in MERGE_KEYS else ()
    given = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return next(((key,) for key in PORT_KEYS if any(key in item for item in given)), PORT_KEYS)


def _no_items(path: str, value: Any, field: str) -> Iterator[Broken]:
    """Refuse what is no list of items; null takes away a list of which a plan's pods need nothing."""
    if value is None and field not in PLANNED_LISTS:
        return
    reason = "an empty one changes nothing" if value == [] else "anything else would replace what the plan wrote"
    yield Broken("S466 must be a list of items to merge", reason, removal(), path, value)


def _odd_item(path: str, item: Any, field: str, keys: Sequence[str], drop: Fix) -> Iterator[Broken]:
    """Refuse an item without the key that `field` is merged by. Its value stays unsaid: it may be a secret."""
    by = " or ".join(keys)
    if not isinstance(item, dict):
        yield Broken("S466 must be a mapping", f"{field} are merged by {by}", drop, path)
    elif not any(key in item for key in keys):
        yield Broken(f"S466 must have {by}", f"{field} are merged by it, else they replace the plan's", drop, path)
    for key in keys:
        if isinstance(item, dict) and key in item:
            yield from _odd_name(f"{path}.{key}", item[key], field, drop)


def _twice(path: str, items: Sequence[Any], key: str, field: str) -> Iterator[Broken]:
    """Refuse a second item of one name: only one of the two would be merged."""
    first: dict[str | int, int] = {}
    for index, item in enumerate(items):
        name = item.get(key) if isinstance(item, dict) else None
        if isinstance(name, str | int) and first.setdefault(name, index) < index:
            where = f"{path}.{index}"
            rule = f"S466 must differ from {path}.{first[name]}.{key}"
            fix = removal(where, words="remove the item")
            yield Broken(rule, f"{field} are merged by it", fix, f"{where}.{key}", name)


def _odd_name(path: str, value: Any, field: str, drop: Fix) -> Iterator[Broken]:
    """Refuse a name of another kind than the items of `field` have."""
    kind, words = (int, "a whole number") if field == "ports" else (str, "text")
    if type(value) is kind:
        return
    fix = drop
    if kind is int and isinstance(value, str) and re.fullmatch(r"[0-9]{1,5}", value):
        fix = nearest(int(value))
    elif kind is str and type(value) in (int, float):
        fix = Fix(f'nearest: "{value}"', ({HERE: str(value)},))
    yield Broken(f"S466 must be {words}", f"{field} are merged by it", fix, path, value)


def _decided(
    patch: Mapping[str, Any], decided: AbstractSet[Path], planned: AbstractSet[Path], parents: Path = ()
) -> Iterator[Path]:
    """Yield the paths in `patch` that are `decided` by the plan, or that would take away something `planned`."""
    for key, value in patch.items():
        path = (*parents, key)
        is_mark = bool(parents) and parents[-1] in MARKS and key.startswith(OUR_LABELS)
        takes_away = not isinstance(value, dict) and any(each[: len(path)] == path for each in planned)
        takes_marks = key in MARKS and not isinstance(value, dict)
        if path in decided or is_mark or takes_away or takes_marks:
            yield path
        elif isinstance(value, dict):
            yield from _decided(value, decided, planned, path)


def _directives(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of kubectl's own, such as `$patch`, in `value` and in the items of its lists."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        if isinstance(key, str) and key.startswith("$"):
            yield f"{path}.{key}", inner
        else:
            yield from _directives(f"{path}.{key}", inner)


def _at(patch: Any, path: Path) -> Any:
    for key in path:
        patch = patch[key]
    return patch

"""The rules about `kubernetes.patches`: of which objects, and what they leave alone.

`layout_rules.py` asks them with the others. A patch may change whatever the plan does not decide. What it does decide,
or finds its objects by, stays: names, counts, selectors and our labels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts import names
from planner.facts.catalog import Gpu
from planner.facts.terms import Phase
from planner.problems.fix import HERE, Fix, did_you_mean, nearest, removal
from planner.spec.merge_keys import MERGE_KEYS, PORT_KEYS
from planner.spec.pods import PATCHED_KINDS
from planner.spec.rule import Broken, Partial, Rule, declare_in

__all__ = ["RULES"]

DECIDED = {
    ("apiVersion",),
    ("kind",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("spec", "replicas"),
    ("spec", "selector"),
    ("spec", "minAvailable"),
    ("spec", "leaderWorkerTemplate", "size"),
}
OUR_LABELS = ("app.kubernetes.io/", names.DOMAIN)
MARKS = ("labels", "annotations", "matchLabels")
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
        patch = each.get("patch")
        for path in _decided(patch) if isinstance(patch, dict) else ():
            where = ".".join(["kubernetes.patches", str(index), "patch", *path])
            rule = f"S460 must leave {'.'.join(path)} alone"
            yield Broken(rule, "the plan decides it, or finds the object by it", removal(), where, _at(patch, path))


@_reads("kubernetes.patches")
def patched_items_have_names(patches: Patches) -> Iterator[Broken]:
    """By which the items of a list are merged."""
    for index, each in enumerate(patches):
        yield from _unnamed(f"kubernetes.patches.{index}.patch", each.get("patch"))


@_reads("kubernetes.patches", "kubernetes.unit_kind", "kubernetes.monitors", "kubernetes.create_namespace")
def patches_are_of_kinds_that_are_rendered(
    patches: Patches, unit_kind: str, monitors: bool, create_namespace: bool
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
    ):
        if not is_on:
            absent[kind] = f"{field} is false", Fix(f"write {field}: true", ({field: True},))
    for index, each in enumerate(patches):
        if each.get("kind") in absent:
            reason, fix = absent[each["kind"]]
            yield Broken(NOT_RENDERED, reason, fix, f"kubernetes.patches.{index}.kind", each["kind"])


@_reads("kubernetes.patches", "cluster.device", "kubernetes.disruptions", "kubernetes.compute_domain")
def patches_are_of_kinds_of_gpus(
    patches: Patches, gpu: Gpu, disruptions: int | None, compute_domain: bool | None
) -> Iterator[Broken]:
    """The same of kinds that are rendered for some GPUs."""
    absent = set()
    if gpu.device == "cpu" and disruptions is None:
        absent.add("PodDisruptionBudget")
    if not gpu.nvlink_leaves_node or compute_domain is False:
        absent.add("ComputeDomain")
    for index, each in enumerate(patches):
        if each.get("kind") in absent:
            path = f"kubernetes.patches.{index}"
            fix = removal(path, words="remove the patch")
            yield Broken(NOT_RENDERED, "this plan has none", fix, f"{path}.kind", each["kind"])


@_reads("kubernetes.patches", "name", "spec.units", "kubernetes.namespace")
def patches_are_of_objects_that_are_rendered(
    patches: Patches, plan: str, num_units: Mapping[Phase, int], namespace: str
) -> Iterator[Broken]:
    """A patch of nothing would be lost without a word."""
    known = _object_names(plan, num_units, namespace)
    for index, each in enumerate(patches):
        kind, name = each.get("kind"), each.get("name")
        if isinstance(each, Partial) or kind not in known or name is None or name in known[kind]:
            continue
        rule = f"S462 must be the name of a {kind} that is rendered ({_some(known[kind])})"
        fix = did_you_mean(name, known[kind]) if len(known[kind]) <= MAX_LISTED else nearest(known[kind][0])
        yield Broken(rule, "the patch would be lost", fix, f"kubernetes.patches.{index}.name", name)


def _object_names(plan: str, num_units: Mapping[Phase, int], namespace: str) -> dict[str, list[str]]:
    units = [names.unit_name(plan, phase, index) for phase, count in num_units.items() for index in range(count)]
    gateway, runtime = names.gateway_name(plan), names.runtime_account(plan)
    found = {
        "Deployment": [gateway],
        "Service": [gateway, names.registry_name(plan), *units],
        "ServiceAccount": [gateway, runtime],
        "Namespace": [namespace],
        "PodDisruptionBudget": [names.phase_budget(plan, phase) for phase in num_units],
        "PodMonitor": [gateway, runtime],
    }
    return {kind: found.get(kind, units) for kind in PATCHED_KINDS}


def _some(known: Sequence[str]) -> str:
    more = len(known) - MAX_LISTED
    return f"{', '.join(known[:MAX_LISTED])} and {more} more" if more > 0 else ", ".join(known)


def _unnamed(path: str, value: Any, field: str = "") -> Iterator[Broken]:
    """What is wrong with the items, anywhere in `value`, of lists whose items Kubernetes knows by a key."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _unnamed(f"{path}.{key}", below, key)
        return
    keys = PORT_KEYS if field == "ports" else [MERGE_KEYS[field]] if field in MERGE_KEYS else []
    for index, item in enumerate(value if isinstance(value, list) else ()):
        where = f"{path}.{index}"
        yield from _unnamed(where, item)
        if keys and not isinstance(item, dict):
            rule, fix = "S466 must be a mapping", removal(where, words="remove the item")
            yield Broken(rule, f"{field} are merged by {' or '.join(keys)}", fix, where, item)
        for key in keys:
            if isinstance(item, dict) and key in item:
                yield from _odd_name(f"{where}.{key}", item[key], field)


def _odd_name(path: str, value: Any, field: str) -> Iterator[Broken]:
    """What is wrong with a name of another kind than the items of `field` have."""
    kind, words = (int, "a whole number") if field == "ports" else (str, "text")
    if type(value) is kind:
        return
    fix = removal(path.rpartition(".")[0], words="remove the item")
    if kind is int and isinstance(value, str) and re.fullmatch(r"[0-9]{1,5}", value):
        fix = nearest(int(value))
    elif kind is str and type(value) in (int, float):
        fix = Fix(f'nearest: "{value}"', ({HERE: str(value)},))
    yield Broken(f"S466 must be {words}", f"{field} are merged by it", fix, path, value)


def _decided(patch: Mapping[str, Any], parents: Path = ()) -> Iterator[Path]:
    """The paths in `patch` that the plan decides, or that would take such a one away with them."""
    for key, value in patch.items():
        path = (*parents, key)
        is_mark = bool(parents) and parents[-1] in MARKS and key.startswith(OUR_LABELS)
        takes_away = not isinstance(value, dict) and any(each[: len(path)] == path for each in DECIDED)
        takes_marks = key in MARKS and not isinstance(value, dict)
        if path in DECIDED or is_mark or takes_away or takes_marks or key.startswith("$"):
            yield path
        elif isinstance(value, dict):
            yield from _decided(value, path)


def _at(patch: Any, path: Path) -> Any:
    for key in path:
        patch = patch[key]
    return patch

"""Compare the pods of two plans: which are new, moved, restarted, removed or kept.

Both plans are rendered, and the pod templates of each workload are compared (`manifests/workloads.py`). Manual changes
in the cluster are not seen: the provider and `kubectl diff` show those.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.diff.change import UnitChange, Workload
from planner.facts import names
from planner.facts.engines import OURS
from planner.manifests.workloads import Pods, pods_of_workloads
from planner.plan.plan import Plan

LIMITS = "limits"  # the launch file's field that holds all limits
FIELD_NAMES = {
    "affinity": "nodes",
    "terminationGracePeriodSeconds": "time to end",
    "startupProbe": "time to start",
    "size": "nodes",
    # fields of launch files
    "ranks": "GPUs",
    "kv_tokens": "KV memory",
    "places": "nodes",
    "kv_cache": "KV format",
    "model": "model name",
    "tls": "identities",
}
IGNORED_LAUNCH_FIELDS = {
    "version",
    "kind",
    "unit",
    "phase",
    "container",
}  # fields that are names, or that the pod shows too


def compare_pods(before: Plan, after: Plan, files: Mapping[str, str] | None = None) -> tuple[UnitChange, ...]:
    """Return what happens to the pods of each unit, of the gateway and of the controller.

    `files` are the manifests of `after`, if these are rendered already. Raises InfeasibleError if one of the plans
    cannot be rendered.
    """
    old, new = pods_of_workloads(before), pods_of_workloads(after, files)
    return tuple(_compare_workload(name, old.get(name), new.get(name), before, after) for name in {**new, **old})


def _compare_workload(name: str, old: Pods | None, new: Pods | None, before: Plan, after: Plan) -> UnitChange:
    phase = _phase(name, before if new is None else after)
    if old is None or new is None:
        return UnitChange(name=name, phase=phase, change="new" if old is None else "removed", why=(), in_turn=False)
    why = tuple(_causes(name, old, new, before, after))
    is_moved = before.nodes_by_unit.get(name) != after.nodes_by_unit.get(name)
    return UnitChange(
        name=name,
        phase=phase,
        change="kept" if not why else "moved" if is_moved else "restarted",
        why=why,
        in_turn=bool(why) and _takes_turns(name, old, new, before, after),
    )


def _phase(name: str, plan: Plan) -> Workload:
    phase = next((unit.phase for unit in plan.units if unit.name == name), None)
    return phase or ("gateway" if name == names.gateway_name(plan.name) else "controller")


def _takes_turns(name: str, old: Pods, new: Pods, before: Plan, after: Plan) -> bool:
    """Return whether a workload changes in turn: while others serve, when the controller or else the provider says so.

    Both need the same KV format before and after. The provider's turns need the same nodes as well
    (`stacks/provider/rollout.py`). The controller waits with a turn until the unit's new nodes are free, but units that
    wait for each other's nodes change together. Units of another engine whose image changes do not change in turn,
    because its router might join old and new ones.
    """
    file = names.GATEWAY_LAUNCH_FILE if name == names.gateway_name(after.name) else names.launch_file(name)
    old_kv, new_kv = (
        [plan.launch_documents.get(file, {}).get(key) for key in ("kv_digest", "engine")] for plan in (before, after)
    )
    if (old.kind, old.namespace) != (new.kind, new.namespace) or old_kv != new_kv or new_kv[0] is None:
        return False
    if after.kubernetes.controller and new.kind == "LeaderWorkerSet":
        is_foreign = after.engine != OURS and len(after.phases) > 1 and old.image != new.image
        return not is_foreign and not _waits_for_itself(name, before, after)
    affinities = [each.template["spec"].get("affinity") for each in (old, new)]
    return bool(old.group == new.group and affinities[0] == affinities[1])


def _waits_for_itself(name: str, before: Plan, after: Plan) -> bool:
    """Return whether units exchange nodes in a circle with this one, so that it would wait for itself."""
    holder = {node: unit for unit, nodes in before.nodes_by_unit.items() for node in nodes}
    found: set[str] = set()
    left = [name]
    while left:
        unit = left.pop()
        holders = {holder.get(node, unit) for node in after.nodes_by_unit.get(unit, ())} - {unit}
        left += holders - found
        found |= holders
    return name in found


def _causes(name: str, old: Pods, new: Pods, before: Plan, after: Plan) -> list[str]:
    """Return in words what differs between a workload's old and new pods; nothing if the pods are kept."""
    found = [field for field in ("kind", "namespace") if getattr(old, field) != getattr(new, field)]
    if old.kind == new.kind:
        found += [_field_name(path) for path in _differences(old.group, new.group)]
    if old.template != new.template:
        told = _launch_file_causes(name, before, after)
        paths = [_field_name(path) for path in _differences(old.template, new.template)] or ["order"]
        # A changed launch file also changes the name of its volume.
        found += [*told, *(each for each in paths if not (told and each == "volumes"))]
    return list(dict.fromkeys(found))


def _launch_file_causes(name: str, before: Plan, after: Plan) -> list[str]:
    """Return in words which fields of the workload's launch file differ."""
    file = names.GATEWAY_LAUNCH_FILE if name == names.gateway_name(after.name) else names.launch_file(name)
    old, new = (plan.launch_documents.get(file, {}) for plan in (before, after))
    differing = [key for key in {**new, **old} if old.get(key) != new.get(key) and key not in IGNORED_LAUNCH_FIELDS]
    fields = [FIELD_NAMES.get(key, key.replace("_", " ")) for key in differing if not key.endswith("_digest")]
    at = fields.index(LIMITS) if LIMITS in fields else len(fields)
    return [*fields[:at], *_differing_limits(old, new), *fields[at + 1 :]]


def _differing_limits(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the limits that differ between two launch files, by a field of the spec or in words."""
    before, after = old.get(LIMITS, {}), new.get(LIMITS, {})
    return [FIELD_NAMES.get(key, key) for key in {**after, **before} if before.get(key) != after.get(key)]


def _differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths at which two templates differ. Entries of a list are matched by name if they have one."""
    if old == new:
        return
    fields = _fields(path, old), _fields(path, new)
    if fields[0] is None or fields[1] is None:
        yield path
        return
    for key in {**fields[1], **fields[0]}:
        yield from _differences(fields[0].get(key), fields[1].get(key), (*path, key))


def _fields(path: tuple[str, ...], value: Any) -> Mapping[str, Any] | None:
    """Return an object's fields, or a list's entries by name; None for a value that is compared as a whole."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and path[-1:] == ("args",):
        return _options(value)
    if isinstance(value, list) and all(isinstance(each, dict) and "name" in each for each in value):
        return {each["name"]: each for each in value}
    return None


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Return option -> its values on a command line, so that the order of options does not matter."""
    found: dict[str, str] = {}
    option = "arguments"  # the key for words before the first option
    for each in arguments:
        value = each
        if each.startswith("-"):
            option, _, value = each.partition("=")
        found[option] = f"{found.get(option, '')} {value}"
    return found


def _field_name(path: tuple[str, ...]) -> str:
    """Return a reviewer's name for the field at `path` of a pod template."""
    if "spec" not in path:
        of_object = path[path.index("metadata") + 1 :] if "metadata" in path else path
        return " ".join(FIELD_NAMES.get(each, each) for each in of_object[:2])
    field, *below = path[path.index("spec") + 1 :] or ("spec",)
    if field not in ("containers", "initContainers") or len(below) < 2:
        return FIELD_NAMES.get(field, field)
    _, of_container, *rest = below
    if of_container == "args" and rest:
        return rest[0]
    return " ".join((of_container, *rest[:1])) if of_container == "env" else FIELD_NAMES.get(of_container, of_container)

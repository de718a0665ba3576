"""Compare the pods of two plans: which are new, moved, restarted, removed or kept.

Both plans are rendered, and the pod templates of each workload are compared (`manifests/workloads.py`). Manual changes
in the cluster are not seen: the provider and `kubectl diff` show those.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.diff.change import Fate, UnitChange, Workload
from planner.diff.values import are_same
from planner.facts import names
from planner.facts.engines import OURS
from planner.manifests.workloads import Pods, pods_of_workloads, standing_pods
from planner.plan.plan import Plan

Values = tuple[str, str]  # old and new

MAX_VALUE = 120  # characters; a longer value is not shown
LIMITS = "limits"  # the launch file's field that holds all limits
FIELD_NAMES = {
    "affinity": "nodes",
    "terminationGracePeriodSeconds": "seconds to end",
    "startupProbe": "time to start",
    "size": "nodes",
    # fields of launch files
    "ranks": "GPUs",
    "kv_tokens": "KV tokens",
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


def compare_pods(
    before: Plan,
    after: Plan,
    files: Mapping[str, str] | None = None,
    added: Sequence[str] = (),
    edits: Mapping[str, str | None] | None = None,
) -> tuple[UnitChange, ...]:
    """Return what happens to the pods of each unit, of the gateway and of the controller.

    `files` are the manifests of `after`, if these are rendered already. `added` names differences in what is added to
    rendered objects, such as another image: these restart all pods. `edits` are the manifests that run, where these are
    not as `before` renders them. Raises InfeasibleError if one of the plans cannot
    be rendered.
    """
    old = standing_pods(before, edits) if edits else pods_of_workloads(before)
    new = pods_of_workloads(after, files)
    return tuple(_compare_workload(name, old.get(name), new.get(name), before, after, added) for name in {**new, **old})


def is_same_deployment(before: Plan, after: Plan) -> bool:
    """Return whether two plans are one deployment. Under another name or namespace, the new one starts beside the old.

    No controller or gateway knows units of both, so none takes turns or waits for another.
    """
    return (before.name, before.kubernetes.namespace) == (after.name, after.kubernetes.namespace)


def _compare_workload(
    name: str, old: Pods | None, new: Pods | None, before: Plan, after: Plan, added: Sequence[str]
) -> UnitChange:
    phase = _phase(name, before if new is None else after)
    if old is None or new is None:
        change: Fate = "new" if old is None else "removed"
        return UnitChange(name=name, phase=phase, change=change, why=(), values={}, in_turn=False)
    causes = _causes(name, old, new, before, after) | dict.fromkeys(added)
    why = tuple(causes)
    is_moved = before.nodes_by_unit.get(name) != after.nodes_by_unit.get(name)
    return UnitChange(
        name=name,
        phase=phase,
        change="kept" if not why else "moved" if is_moved else "restarted",
        why=why,
        values={cause: values for cause, values in causes.items() if values is not None},
        in_turn=bool(why)
        and _takes_turns(name, old, new, before, after, has_same_image=not added and old.image == new.image),
    )


def _phase(name: str, plan: Plan) -> Workload:
    phase = next((unit.phase for unit in plan.units if unit.name == name), None)
    return phase or ("gateway" if name == names.gateway_name(plan.name) else "controller")


def _takes_turns(name: str, old: Pods, new: Pods, before: Plan, after: Plan, *, has_same_image: bool) -> bool:
    """Return whether a workload changes in turn, while others serve, as the controller or else the provider decides.

    Both need the same KV format before and after: otherwise old and new pods do not talk to each other. The provider's
    turns need the same certificates and nodes as well (`stacks/provider/rollout.py`). The controller waits with a turn
    until the unit's new nodes are free, but units that wait for each other's nodes change together. Units of another
    engine whose image changes do not change in turn, because its router might join old and new ones.
    """
    file = names.GATEWAY_LAUNCH_FILE if name == names.gateway_name(after.name) else names.launch_file(name)
    old_kv, new_kv = (
        [plan.launch_documents.get(file, {}).get(key) for key in ("kv_digest", "engine")] for plan in (before, after)
    )
    if not is_same_deployment(before, after) or old.kind != new.kind or old_kv != new_kv or new_kv[0] is None:
        return False
    if after.kubernetes.controller and new.kind == "LeaderWorkerSet":
        is_foreign = after.engine != OURS and len(after.phases) > 1 and not has_same_image
        return not is_foreign and not _waits_for_itself(name, before, after)
    if before.kubernetes.tls != after.kubernetes.tls:
        return False
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


def _causes(name: str, old: Pods, new: Pods, before: Plan, after: Plan) -> dict[str, Values | None]:
    """Return what differs between a workload's old and new pods -> (old, new) values, or None if these are long.

    The result is empty if the pods are kept.
    """
    places = {field: (getattr(old, field), getattr(new, field)) for field in ("kind", "namespace")}
    found: dict[str, Values | None] = {field: sides for field, sides in places.items() if sides[0] != sides[1]}
    if old.kind == new.kind:
        found |= _named_differences(old.group, new.group)
    if not are_same(old.template, new.template):
        launched = _launch_file_causes(name, before, after)
        fields = _named_differences(old.template, new.template) or {"order": None}
        # A changed launch file also changes the name of its volume.
        found |= launched | {field: values for field, values in fields.items() if not (launched and field == "volumes")}
    return found


def _named_differences(old: Any, new: Any) -> dict[str, Values | None]:
    """Return each field that differs between two templates -> its (old, new) values, or None if these are long."""
    found: dict[str, Values | None] = {}
    for path, *sides in _differences(old, new):
        name, is_whole = _field_name(path)
        found.setdefault(name, _short_values(*sides) if is_whole else None)
    return found


def _launch_file_causes(name: str, before: Plan, after: Plan) -> dict[str, Values | None]:
    """Return the name of each field of the workload's launch file that differs -> its values, or None if long.

    Of the limits, each limit that differs is named.
    """
    file = names.GATEWAY_LAUNCH_FILE if name == names.gateway_name(after.name) else names.launch_file(name)
    old, new = (plan.launch_documents.get(file, {}) for plan in (before, after))
    found: dict[str, Values | None] = {}
    for key in {**new, **old}:
        if are_same(old.get(key), new.get(key)) or key in IGNORED_LAUNCH_FIELDS or key.endswith("_digest"):
            continue
        if key == LIMITS:
            found |= _differing_limits(old.get(LIMITS, {}), new.get(LIMITS, {}))
        else:
            found[FIELD_NAMES.get(key, key.replace("_", " "))] = _short_values(old.get(key), new.get(key))
    return found


def _differing_limits(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Values | None]:
    """Return limit -> its old and new value as text, for limits that differ between two launch files.

    A limit is named by its field of the spec or in words.
    """
    keys = (key for key in {**new, **old} if not are_same(old.get(key), new.get(key)))
    return {FIELD_NAMES.get(key, key): _short_values(old.get(key), new.get(key)) for key in keys}


def _short_values(old: Any, new: Any) -> Values | None:
    """Return two values as text; None unless both are plain and short enough for a line."""
    if not all(isinstance(each, str | int | float) and len(str(each)) <= MAX_VALUE for each in (old, new)):
        return None
    return str(old).strip(), str(new).strip()


def _differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield (path, old, new) where two templates differ. Entries of a list are matched by name if they have one."""
    if are_same(old, new):
        return
    fields = _fields(path, old), _fields(path, new)
    if fields[0] is None or fields[1] is None:
        yield path, old, new
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
    for each in map(str, arguments):
        value = each
        if each.startswith("-"):
            option, _, value = each.partition("=")
        found[option] = f"{found.get(option, '')} {value}"
    return found


def _field_name(path: tuple[str, ...]) -> tuple[str, bool]:
    """Return a reviewer's name for the field at `path` of a pod template, and whether the path is that whole field.

    Options, variables, labels and annotations never count as whole: their values may be private.
    """
    if "spec" not in path:
        is_labelled = "metadata" in path
        of_object = path[path.index("metadata") + 1 :] if is_labelled else path
        return " ".join(FIELD_NAMES.get(each, each) for each in of_object[:2]), not is_labelled and len(of_object) <= 2
    field, *below = path[path.index("spec") + 1 :] or ("spec",)
    if field not in ("containers", "initContainers") or len(below) < 2:
        return FIELD_NAMES.get(field, field), not below
    _, of_container, *rest = below
    if of_container == "args" and rest:
        return rest[0], False
    if of_container == "env":
        return " ".join((of_container, *rest[:1])), False
    return FIELD_NAMES.get(of_container, of_container), not rest

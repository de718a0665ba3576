"""What becomes of the pods that run, when another plan takes the place of theirs.

A pod is replaced when anything in its template differs. So both plans are rendered, the spec's overlay included, and
the templates of each workload are compared. What somebody changed in the cluster by hand is not seen, and nothing is
asked there: the provider and `kubectl diff` do that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from planner.diff.change import UnitChange, Workload
from planner.facts import names
from planner.manifests.render import render_files
from planner.plan.plan import Plan

__all__ = ["unit_changes"]

KINDS = ("LeaderWorkerSet", "StatefulSet", "Deployment")
TEMPLATE = "workerTemplate"
IN_WORDS = {
    "affinity": "nodes",
    "terminationGracePeriodSeconds": "time to end",
    "size": "nodes",
    # of launch files
    "ranks": "parallelism",
    "places": "nodes",
    "kv_cache": "KV format",
    "model": "model name",
    "tls": "identities",
}
FOLLOWS = {"version", "kind", "unit", "phase", "container"}  # of launch files: what names them, or is seen in the pod


@dataclass(frozen=True)
class _Pods:
    """The pods of one workload: who keeps them, and what they are made from."""

    kind: str
    namespace: str
    group: Any  # how the pods of a unit belong together
    template: Any  # of one pod


def unit_changes(before: Plan, after: Plan) -> tuple[UnitChange, ...]:
    """Return what becomes of the pods of each unit, of gateway and controller. Raises InfeasibleError where one of the
    plans cannot be rendered.
    """
    old, new = _pods_of(before), _pods_of(after)
    return tuple(_change(name, old.get(name), new.get(name), before, after) for name in {**new, **old})


def _pods_of(plan: Plan) -> dict[str, _Pods]:
    """Return the pods of each workload by its name."""
    objects = [each for text in render_files(plan).values() for each in yaml.load_all(text, Loader=yaml.CSafeLoader)]
    return {each["metadata"]["name"]: _pods(each) for each in objects if each["kind"] in KINDS}


def _pods(workload: Mapping[str, Any]) -> _Pods:
    spec, place = workload["spec"], (workload["kind"], workload["metadata"]["namespace"])
    if workload["kind"] != "LeaderWorkerSet":
        return _Pods(*place, None, spec["template"])
    group = spec["leaderWorkerTemplate"]
    return _Pods(*place, {key: value for key, value in group.items() if key != TEMPLATE}, group[TEMPLATE])


def _change(name: str, old: _Pods | None, new: _Pods | None, before: Plan, after: Plan) -> UnitChange:
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
        in_turn=bool(why) and _changes_in_turn(name, old, new, before, after),
    )


def _phase(name: str, plan: Plan) -> Workload:
    phase = next((unit.phase for unit in plan.units if unit.name == name), None)
    return phase or ("gateway" if name == names.gateway_name(plan.name) else "controller")


def _changes_in_turn(name: str, old: _Pods, new: _Pods, before: Plan, after: Plan) -> bool:
    """Whether the provider gives it a turn, as `stacks/provider/rollout.py` decides: same nodes, and a known KV."""
    places = [(each.kind, each.namespace, each.group, each.template["spec"].get("affinity")) for each in (old, new)]
    file = names.GATEWAY_LAUNCH_FILE if name == names.gateway_name(after.name) else names.launch_file(name)
    old_kv, new_kv = (
        [plan.launch_documents.get(file, {}).get(key) for key in ("kv_digest", "engine")] for plan in (before, after)
    )
    return places[0] == places[1] and old_kv == new_kv and new_kv[0] is not None


def _causes(name: str, old: _Pods, new: _Pods, before: Plan, after: Plan) -> list[str]:
    """Return what differs between the pods, in words; nothing where they are kept."""
    found = [field for field in ("kind", "namespace") if getattr(old, field) != getattr(new, field)]
    if old.kind == new.kind:
        found += [_in_words(path) for path in _differences(old.group, new.group)]
    if old.template != new.template:
        told = _launch_causes(name, before, after)
        paths = [_in_words(path) for path in _differences(old.template, new.template)] or ["order"]
        # A launch file is a volume of another name, by its content.
        found += [*told, *(each for each in paths if not (told and each == "volumes"))]
    return list(dict.fromkeys(found))


def _launch_causes(name: str, before: Plan, after: Plan) -> list[str]:
    """Return the fields of the workload's launch file that differ."""
    file = names.GATEWAY_LAUNCH_FILE if name == names.gateway_name(after.name) else names.launch_file(name)
    old, new = (plan.launch_documents.get(file, {}) for plan in (before, after))
    differing = [key for key in {**new, **old} if old.get(key) != new.get(key) and key not in FOLLOWS]
    return [IN_WORDS.get(key, key.replace("_", " ")) for key in differing if not key.endswith("_digest")]


def _differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths at which two templates differ. Entries of a list that have names are told apart by these."""
    if old == new:
        return
    fields = _fields(path, old), _fields(path, new)
    if fields[0] is None or fields[1] is None:
        yield path
        return
    for key in {**fields[1], **fields[0]}:
        yield from _differences(fields[0].get(key), fields[1].get(key), (*path, key))


def _fields(path: tuple[str, ...], value: Any) -> Mapping[str, Any] | None:
    """Return what an object or a list of named things has, by name; None for a value that is compared as a whole."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and path[-1:] == ("args",):
        return _options(value)
    if isinstance(value, list) and all(isinstance(each, dict) and "name" in each for each in value):
        return {each["name"]: each for each in value}
    return None


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Return a command line's options with all that follows each, wherever it is given."""
    found: dict[str, str] = {}
    option = "arguments"  # what comes before any option
    for each in arguments:
        value = each
        if each.startswith("-"):
            option, _, value = each.partition("=")
        found[option] = f"{found.get(option, '')} {value}"
    return found


def _in_words(path: tuple[str, ...]) -> str:
    """Return what a review calls the field at `path` of a pod template."""
    if "spec" not in path:
        of_object = path[path.index("metadata") + 1 :] if "metadata" in path else path
        return " ".join(IN_WORDS.get(each, each) for each in of_object[:2])
    field, *below = path[path.index("spec") + 1 :] or ("spec",)
    if field not in ("containers", "initContainers") or len(below) < 2:
        return IN_WORDS.get(field, field)
    _, of_container, *rest = below
    if of_container == "args" and rest:
        return rest[0]
    return " ".join((of_container, *rest[:1])) if of_container == "env" else of_container

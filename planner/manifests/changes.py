"""What becomes of the pods that run, when another plan takes the place of theirs: whoever reviews a spec reads it.

A pod is replaced when anything in its template differs. So both plans are rendered, the spec's overlay included, and
the templates of each workload are compared. What somebody changed in the cluster by hand is not seen, and nothing is
asked there: the provider and `kubectl diff` do that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import yaml

from planner.facts import names
from planner.facts.engines import OURS
from planner.facts.quantities import counted
from planner.manifests.render import render_files
from planner.plan.plan import Plan
from planner.report.columns import filled, runs_of, wrapped

__all__ = ["PodChange", "changes_text", "pod_changes"]

Fate = Literal["restarted", "new", "removed", "kept"]
Workload = tuple[str, str, str]  # name, kind, namespace

TEMPLATES = {
    "LeaderWorkerSet": "leaderWorkerTemplate",
    "StatefulSet": "template",
    "Deployment": "template",
}
IN_WORDS = {"affinity": "its nodes", "terminationGracePeriodSeconds": "the time to end", "size": "its pods"}
MAX_FIELDS = 6  # of a reason; more are counted


@dataclass(frozen=True)
class PodChange:
    """What becomes of the pods of one workload: of a unit, a gateway, the controller. `why` names what differs."""

    name: str
    fate: Fate
    why: tuple[str, ...] = ()


def pod_changes(before: Plan, after: Plan) -> tuple[PodChange, ...]:
    """Return what becomes of the pods of both plans' workloads, in their order. Empty where one cannot be rendered."""
    if before.refusals or after.refusals:
        return ()
    old, new = _templates(before), _templates(after)
    return tuple(_change(each, old.get(each), new.get(each), before, after) for each in {**new, **old})


def changes_text(changes: Sequence[PodChange], before: Plan) -> str:
    """Return the pods' part of a plan's text, those that restart first; empty where nothing is known."""
    order: tuple[Fate, ...] = ("restarted", "new", "removed", "kept")
    alike = sorted(changes, key=lambda each: (order.index(each.fate), each.why))
    rows = [("pods", "of", "what differs")]
    for (fate, why), each in groupby(alike, key=lambda each: (each.fate, each.why)):
        more = [f"and {counted(len(why) - MAX_FIELDS, 'other')}"] if len(why) > MAX_FIELDS else []
        names_of = _runs([one.name.removeprefix(f"{before.name}-") for one in each])
        rows.append((fate, names_of, ", ".join([*why[:MAX_FIELDS], *more])))
    return "\n".join([wrapped(rows), *filled(f"This is beside the previous plan, {before.digest}.")]) if changes else ""


def _runs(workloads: Sequence[str]) -> str:
    """Return workloads in words, units of a phase whose numbers follow each other as one: `prefill-0 to 4, gateway`."""
    runs = runs_of(workloads)
    return ", ".join(f"{each[0]} to {each[-1].rpartition('-')[2]}" if len(each) > 1 else each[0] for each in runs)


def _templates(plan: Plan) -> dict[Workload, Any]:
    """Return the pod template of each workload."""
    found = {}
    for text in render_files(plan).values():
        for each in yaml.load_all(text, Loader=yaml.CSafeLoader):
            if each["kind"] in TEMPLATES:
                workload = each["metadata"]["name"], each["kind"], each["metadata"]["namespace"]
                found[workload] = each["spec"][TEMPLATES[each["kind"]]]
    return found


def _change(workload: Workload, old: Any, new: Any, before: Plan, after: Plan) -> PodChange:
    name, *_ = workload
    if old is None or new is None:
        return PodChange(name, "new" if old is None else "removed")
    if old == new:
        return PodChange(name, "kept")
    why = list(dict.fromkeys(_in_words(path) for path in _differences(old, new))) or ["an order"]
    launch = _launch_differences(name, before, after) if after.engine == OURS else []
    if launch:  # its file is a volume of another name, by its content
        why = [f"launch file ({', '.join(launch)})", *(each for each in why if each != "volumes")]
    return PodChange(name, "restarted", tuple(why))


def _launch_differences(name: str, before: Plan, after: Plan) -> list[str]:
    """Return the fields of the workload's launch file that differ."""
    gateway = names.gateway_name(after.name)
    file = names.GATEWAY_LAUNCH_FILE if name == gateway else names.launch_file(name)
    old, new = (plan.launch_documents.get(file, {}) for plan in (before, after))
    return [key for key in new if old.get(key) != new[key] and not key.endswith("_digest")]


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

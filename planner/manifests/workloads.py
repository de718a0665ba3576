"""The pods of each rendered workload: what Kubernetes compares to decide whether a pod ends.

Kubernetes replaces a pod if anything in its template differs. So whether a unit restarts follows from rendered objects,
with their overlays, and not from fields of the spec.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from planner.manifests.render import render_files
from planner.plan.plan import Plan

KINDS = ("LeaderWorkerSet", "StatefulSet", "Deployment")
PREFIXES = tuple(f"{kind.lower()}-" for kind in KINDS)  # how names of their files begin
TEMPLATE = "workerTemplate"


@dataclass(frozen=True)
class Pods:
    """The pods of one LeaderWorkerSet, StatefulSet or Deployment, by all that decides whether they are replaced."""

    kind: str
    namespace: str
    group: Any  # the group settings of a LeaderWorkerSet
    template: Any  # the pod template

    @property
    def image(self) -> str:
        """The image of the first container, which is the runtime's or the engine's."""
        return str(self.template["spec"]["containers"][0]["image"])


def pods_of_workloads(plan: Plan, files: Mapping[str, str] | None = None) -> dict[str, Pods]:
    """Return workload name -> its pods. `files` are the plan's manifests if they are rendered already.

    Raises InfeasibleError if the plan cannot be rendered.
    """
    texts = [text for name, text in (files or render_files(plan)).items() if name.startswith(PREFIXES)]
    objects = [each for text in texts for each in yaml.load_all(text, Loader=yaml.CSafeLoader)]
    return {each["metadata"]["name"]: _pods(each) for each in objects if each["kind"] in KINDS}


def standing_pods(plan: Plan, edits: Mapping[str, str | None]) -> dict[str, Pods]:
    """Return the pods of a folder whose manifests differ from its plan's by `edits`, as `find_edits` returns them.

    A manifest that nobody can read counts as one whose pods differ.
    """
    files = render_files(plan)
    found: dict[str, Pods] = {}
    for name, text in files.items():
        rendered = pods_of_workloads(plan, {name: text})
        standing = rendered
        if (edited := edits.get(name, text)) != text:
            standing = {} if edited is None else _read_pods(plan, name, edited, rendered)
        found |= standing
    return found


def _read_pods(plan: Plan, name: str, text: str, rendered: Mapping[str, Pods]) -> dict[str, Pods]:
    """Return the pods of an edited file; those that it should have, marked as edited, if it cannot be read."""
    try:
        found = pods_of_workloads(plan, {name: text})
        if all(pods.image and isinstance(pods.template["spec"], dict) for pods in found.values()):
            return {workload: found[workload] for workload in rendered if workload in found}
    except (yaml.YAMLError, LookupError, TypeError):
        pass
    return {workload: replace(pods, template=pods.template | {"edited": True}) for workload, pods in rendered.items()}


def _pods(workload: Mapping[str, Any]) -> Pods:
    spec, place = workload["spec"], (workload["kind"], workload["metadata"]["namespace"])
    if workload["kind"] != "LeaderWorkerSet":
        return Pods(*place, None, spec["template"])
    group = spec["leaderWorkerTemplate"]
    return Pods(*place, {key: value for key, value in group.items() if key != TEMPLATE}, group[TEMPLATE])

"""Reads the cluster: a TidemillDeployment and its units' LeaderWorkerSets become a `Situation`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from planner.facts import names
from stacks.controller.changes import previous_changes
from stacks.controller.clock import Clock
from stacks.controller.kv_formats import find_other_kv_formats
from stacks.controller.lend import FREE, RECLAIMED, Marks
from stacks.controller.situation import LiveUnit, Situation
from stacks.controller.spec import WrongDay, read_clock, read_orders, read_timetable
from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest, Reference, find_condition, object_name, parse_instant
from stacks.kube.readiness import missing, num_withheld

__all__ = [
    "CURRENT",
    "Observation",
    "deployment_reference",
    "find_deployment",
    "list_units",
    "observe",
    "previous_marks",
    "previous_units",
    "read_situation",
    "unit_pods",
]

UNIT_API_VERSION, UNIT_KIND = names.UNIT_OBJECTS["leaderworkerset"]
# Selects the StatefulSets of leaders, each named as its unit; those of workers have a label with their group too.
# Source: github.com/kubernetes-sigs/lws 060ab4d pkg/controllers/leaderworkerset_controller.go and pod_controller.go
LEADERS = "leaderworkerset.sigs.k8s.io/name,!leaderworkerset.sigs.k8s.io/group-index"
CURRENT = "Current"  # the condition that is true while no unit waits for a new template
NOW = "now"
GRACE_S = 30  # of a pod that gives none. Source: k8s.io/api core/v1 PodSpec


@dataclass(frozen=True)
class Observation:
    """One look at a deployment: its own object, its units, and its clock."""

    situation: Situation
    clock: Clock


def deployment_reference(namespace: str, name: str) -> Reference:
    """Return the API reference of a TidemillDeployment."""
    return Reference(names.DEPLOYMENT_API_VERSION, names.DEPLOYMENT_KIND, namespace, name)


def find_deployment(api: Api, namespace: str, name: str) -> Manifest | None:
    """Return the live TidemillDeployment; None if it does not exist.

    Raises ProviderError if the cluster cannot be asked.
    """
    return api.get(deployment_reference(namespace, name))


def observe(api: Api, deployment: Manifest, now: float) -> Observation:
    """Read the deployment's units from the cluster, at the wall-clock time `now`.

    Raises ProviderError if the cluster cannot be asked, and WrongDay if the day cannot be followed.
    """
    metadata, spec, clock = deployment["metadata"], deployment["spec"], read_clock(deployment)
    if not clock.has_date(now):
        began = metadata["creationTimestamp"]
        raise WrongDay(f"spec.pace ({clock.pace:g}) has left the calendar since {began}: create the object anew")
    units = list_units(api, deployment)
    outdated, unknown = _find_outdated(api, metadata["namespace"], units)
    departed = _find_departed(deployment, units)
    is_changing = bool(outdated or departed)
    looked = [object_name(each) for each in units] if is_changing else _units_not_yet_free(deployment, units)
    pods, unseen = _list_pods(api, metadata["namespace"], looked)
    occupied = dict.fromkeys(looked, ()) if unseen else _occupied_nodes(pods)
    differing, gateway = find_other_kv_formats(api, deployment, units, pods) if outdated else (set(), "newest")
    situation = read_situation(spec, units, clock, now, occupied, outdated, differing & outdated)
    noticed_s = (now - _outdated_since(deployment, now)) * clock.pace
    return Observation(
        replace(
            situation,
            unseen="; ".join(filter(None, (unseen, unknown))) or None,
            are_templates_known=_are_recorded(deployment, situation.units),
            has_given_notice=noticed_s >= situation.timetable.notice_s,
            departed=tuple(_departed_unit(each, occupied) for each in departed),
            gateway=gateway,
            extra_drain_s=_extra_drain_s([each for each in units if object_name(each) in outdated], pods),
        ),
        clock,
    )


def list_units(api: Api, deployment: Manifest) -> list[Manifest]:
    """Return the LeaderWorkerSets of all units, those of departed units included.

    Raises ProviderError if they cannot be listed.
    """
    selector = f"{names.PLAN_LABEL}={deployment['metadata']['name']}"
    return api.list_all(UNIT_API_VERSION, UNIT_KIND, deployment["metadata"]["namespace"], labelSelector=selector)


def unit_pods(api: Api, deployment: Manifest) -> list[Manifest]:
    """Return the pods of all units. Raises ProviderError if they cannot be listed."""
    selector = f"{names.PLAN_LABEL}={deployment['metadata']['name']},{names.UNIT_LABEL}"
    return api.list_all("v1", "Pod", deployment["metadata"]["namespace"], labelSelector=selector)


def read_situation(
    spec: Mapping[str, Any],
    objects: Sequence[Manifest],
    clock: Clock,
    now: float,
    occupied: Mapping[str, Collection[str]] = MappingProxyType({}),
    outdated: Collection[str] = (),
    differing: Collection[str] = (),
) -> Situation:
    """Return the situation at the time `now`, from a deployment's spec and its units' objects.

    `occupied` maps a unit to the nodes that its pods are on. A unit is missing there if it has no pods, or if nobody
    looked at them. Raises WrongDay if the day cannot be followed.
    """
    live = {object_name(each): each for each in objects}
    units = []
    for each in spec["units"]:
        unit = _unit(each, live.get(each["name"]), occupied.get(each["name"]))
        is_late = unit.is_on and not unit.is_ready and _is_late(live[unit.name], spec, now)
        is_outdated, has_other_kv_format = unit.name in outdated, unit.name in differing
        units.append(replace(unit, is_outdated=is_outdated, has_other_kv_format=has_other_kv_format, is_late=is_late))
    timetable = read_timetable(spec)
    return Situation(
        timetable,
        tuple(units),
        read_orders(spec, {step.at for step in timetable.steps}, clock, now),
        lends_nodes="lendNodes" in spec,
        may_lack_one=spec.get("turns", NOW) == NOW,
    )


def previous_marks(deployment: Manifest) -> Marks:
    """Return the nodes' marks in the deployment's status."""
    nodes = (deployment.get("status") or {}).get("nodes") or {}
    return Marks(tuple(nodes.get(FREE) or ()), tuple(nodes.get(RECLAIMED) or ()))


def previous_units(deployment: Manifest) -> list[str]:
    """Return the units in the deployment's status, with departed ones that still existed then."""
    return list((deployment.get("status") or {}).get("unitNames") or ())


def _find_departed(deployment: Manifest, units: Sequence[Manifest]) -> list[Manifest]:
    """Return the LeaderWorkerSets of units that the plan had and no longer has."""
    planned, known = {each["name"] for each in deployment["spec"]["units"]}, {*previous_units(deployment)}
    return [
        each
        for each in units
        if object_name(each) in known - planned and names.PHASE_LABEL in each["metadata"]["labels"]
    ]


def _departed_unit(live: Manifest, occupied: Mapping[str, Collection[str]]) -> LiveUnit:
    settings = {"name": object_name(live), "phase": live["metadata"]["labels"][names.PHASE_LABEL], "pods": 0}
    return _unit(settings, live, occupied.get(settings["name"]))


def _units_not_yet_free(deployment: Manifest, units: Sequence[Manifest]) -> list[str]:
    """Return the units that are off and none of whose nodes is marked as free; none if the plan lends no nodes."""
    if "lendNodes" not in deployment["spec"]:
        return []
    off = {object_name(each) for each in units if each["spec"].get("replicas") == 0}
    free = set(previous_marks(deployment).free)
    return [
        each["name"]
        for each in deployment["spec"]["units"]
        if each["name"] in off and not free & {*each.get("nodes", ())}
    ]


def _find_outdated(api: Api, namespace: str, units: Sequence[Manifest]) -> tuple[set[str], str | None]:
    """Return (units whose pods have an older template than their objects, None).

    If that is unknown for some units, return an error's text in place of None. A unit that is off is outdated until its
    new template is current, because it may get either template if it is started earlier.
    """
    unseen = {object_name(unit) for unit in units if num_withheld(unit) and _is_off(unit) and not _is_observed(unit)}
    doubtful = {
        object_name(unit)
        for unit in units
        if num_withheld(unit) and _is_observed(unit) and not _status_proves_current(unit)
    }
    if not doubtful:
        return unseen, None
    try:
        leaders = api.list_all("apps/v1", "StatefulSet", namespace, labelSelector=LEADERS)
    except ProviderError as error:
        return unseen, f"no unit takes a new template, since StatefulSets cannot be looked at: {error}"
    return unseen | {object_name(each) for each in leaders if object_name(each) in doubtful and _withholds(each)}, None


def _status_proves_current(unit: Manifest) -> bool:
    """Return whether the unit's status proves that its pods have its newest template.

    A unit that is off is current once it has no replicas left.
    """
    status = unit.get("status") or {}
    if _is_off(unit):
        return not status.get("replicas")
    return bool(status.get("updatedReplicas", 0) >= unit["spec"].get("replicas", 1))


def _withholds(leader: Manifest) -> bool:
    """Return whether a unit's StatefulSet of leaders has pods of an older template, or has not seen the newest.

    A StatefulSet that was just created has no pods of an older template.
    """
    status = leader.get("status") or {}
    if not status.get("observedGeneration"):
        return False
    return not _is_observed(leader) or bool(status.get("currentRevision") != status.get("updateRevision"))


def _is_observed(live: Manifest) -> bool:
    return bool((live.get("status") or {}).get("observedGeneration", 0) >= live["metadata"]["generation"])


def _is_late(unit: Manifest, spec: Mapping[str, Any], now: float) -> bool:
    """Return whether a unit has been starting for longer than the spec's `readySeconds`.

    A unit is not late before LeaderWorkerSet's controller has seen that the unit is on, because until then the unit's
    status describes an earlier start.
    """
    starting = find_condition(unit, "Progressing")
    if starting.get("status") != "True" or not _is_observed(unit):
        return False
    since = parse_instant(starting.get("lastTransitionTime") or "")
    return since is not None and "readySeconds" in spec and now - since > spec["readySeconds"]


def _are_recorded(deployment: Manifest, units: Sequence[LiveUnit]) -> bool:
    """Return whether the last look, by the deployment's status, had found all units that run with an older template.

    If it had not, units must wait to restart: a tool applies objects one by one, so more of them may become outdated.
    """
    left = {each.name for change in previous_changes(deployment)[-1:] for each in change.left}
    return all(unit.name in left for unit in units if unit.is_on and unit.is_outdated)


def _outdated_since(deployment: Manifest, now: float) -> float:
    """Return when units became outdated, as the deployment's status says; `now` if the status says nothing of it."""
    current = find_condition(deployment, CURRENT)
    since = parse_instant(current["lastTransitionTime"]) if current.get("status") == "False" else None
    return now if since is None else since


def _list_pods(api: Api, namespace: str, units: Sequence[str]) -> tuple[list[Manifest], str | None]:
    """Return (the pods of these units, None). If they cannot be listed, return (no pods, the error's text)."""
    if not units:
        return [], None
    selector = f"{names.UNIT_LABEL} in ({','.join(units)})"
    try:
        return api.list_all("v1", "Pod", namespace, labelSelector=selector, resourceVersion="0"), None
    except ProviderError as error:
        return [], f"no further node becomes free, since pods cannot be looked at: {error}"


def _occupied_nodes(pods: Sequence[Manifest]) -> Mapping[str, Collection[str]]:
    """Return unit -> the nodes that its pods are on."""
    found: dict[str, set[str]] = {}
    for each in pods:
        nodes = found.setdefault(each["metadata"]["labels"][names.UNIT_LABEL], set())
        nodes |= {each["spec"]["nodeName"]} if each["spec"].get("nodeName") else set()
    return found


def _extra_drain_s(outdated: Sequence[Manifest], pods: Sequence[Manifest]) -> float:
    """Return by how many seconds pods' grace period is longer than that of their `outdated` unit's newest template.

    A grace period is the time to drain and a constant. Return less than 0 if it is shorter, and 0 without such pods.
    """
    newest = {object_name(unit): _grace_s(unit["spec"]["leaderWorkerTemplate"]["workerTemplate"]) for unit in outdated}
    owners = ((each["metadata"]["labels"][names.UNIT_LABEL], each) for each in pods)
    return max((_grace_s(pod) - newest[owner] for owner, pod in owners if owner in newest), default=0.0)


def _grace_s(pod: Manifest) -> float:
    """Return the grace period of a pod or a pod template."""
    return float(pod["spec"].get("terminationGracePeriodSeconds", GRACE_S))


def _unit(settings: Mapping[str, Any], live: Manifest | None, occupied: Collection[str] | None) -> LiveUnit:
    replicas = None if live is None else int(live["spec"].get("replicas", 1))
    return LiveUnit(
        settings["name"],
        settings["phase"],
        replicas,
        is_ready=live is not None and bool(replicas) and missing(live) is None,
        has_pods=bool(replicas) or occupied is not None,
        is_unseen=live is not None and not _is_observed(live),
        num_nodes=settings["pods"],
        nodes=tuple(settings.get("nodes", ())),
        holds=frozenset(occupied or ()),
        spares=tuple(settings.get("spares", ())),
    )


def _is_off(unit: Manifest) -> bool:
    return bool(unit["spec"].get("replicas", 1) == 0)

"""Finds units on faulty nodes, and decides which of them moves to a spare now. Pure.

A node is faulty for a unit if it would repel the unit's new pods: it is cordoned, or has a taint that they do not
tolerate. The unit is then drained and started again, and the scheduler takes a spare. Conditions and labels alone repel
no pod, so a node with one of those in the spec gets a taint first. The taint stays until the condition has been steady
for a while, so a node that reports a fault again and again costs one move. Labels do not say when they changed: for
them, the while begins when the taint was added. A fault that is over moves no unit.

One unit moves at a time, while all others that are on are ready, and another one serves its phase. A unit that moved to
a spare may move back to its own node in the same way.

The pods of a node that does not answer stay: Kubernetes deletes them and waits for the kubelet. When their grace period
is over they are lost, and the controller deletes them by force, so that others can take their place.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.facts import names
from planner.facts.quantities import first_of
from stacks.controller.decide import Decision, Scale
from stacks.controller.situation import LiveUnit, Situation
from stacks.kube.faults import fault_statuses, reported_fault
from stacks.kube.manifest import Manifest, list_conditions, object_name, parse_instant
from stacks.kube.taints import repelling_taints, taint_text

__all__ = ["FaultReports", "Healing", "NodeHealth", "find_node_health", "find_reports", "heal"]

KUBERNETES_TAINTS = "node.kubernetes.io/"  # Kubernetes' own taints, which end the pods of a lost node
MAX_NAMED = 5
STEADY_S = 600.0  # assumed: as long as a unit of hundreds of GPUs takes to start
CORDON, LOST = f"{KUBERNETES_TAINTS}unschedulable", f"{KUBERNETES_TAINTS}unreachable"


@dataclass(frozen=True)
class FaultReports:
    """The faults that nodes report by their conditions and labels, at one look."""

    faulty: frozenset[str] = frozenset()  # nodes that need the plan's taint
    recovered: frozenset[str] = frozenset()  # nodes with the taint that report no fault now
    problem: str | None = None  # why some nodes that report a fault are not tainted


@dataclass(frozen=True)
class NodeHealth:
    """The state of the nodes, and of the pods on them, at one look."""

    faults: Mapping[str, Mapping[str, str]]  # unit -> node that its pods have to leave -> reason
    lost: tuple[str, ...]  # deleted pods whose node does not answer
    unusable: frozenset[str]  # nodes that are faulty, missing, or have a unit's pod


@dataclass(frozen=True)
class Healing:
    """The unit that moves now; and `problems`: units that cannot move, why, and what the operator can do."""

    move: Scale | None = None
    problems: tuple[str, ...] = ()


def find_reports(
    plan: str,
    units: Sequence[LiveUnit],
    nodes: Sequence[Manifest],
    pods: Sequence[Manifest],
    settings: Mapping[str, Sequence[str]],
    now: float,
) -> FaultReports:
    """Return which nodes need the plan's taint at the time `now`, and which with only that taint report no fault.

    A node needs the taint while it reports a condition or label named in `settings`, and for `STEADY_S` after that. A
    condition must be true, or have the status after its `=`. No further node is tainted where units would then lack
    nodes: those that restart must find others.
    """
    reporting = {object_name(node) for node in nodes if reported_fault(node, settings)}
    over = {object_name(node) for node in nodes if _has_only_our_taint(node, plan)} - reporting
    lately = {
        object_name(node) for node in nodes if object_name(node) in over and _reported_lately(node, settings, now)
    }
    tolerations = _tolerations([pod for _, pod in _placed_pods(units, nodes, pods)])
    sound = {object_name(node) for node in nodes if not any(repelling_taints(node, tolerations))} - reporting
    short = _find_short_nodes(units, sound) & reporting
    kept = short - {object_name(node) for node in nodes if _has_taint(node, names.FAULTY_TAINT)}
    faults = FaultReports(frozenset(reporting - kept | lately), frozenset(over))
    if not kept:
        return faults
    which = f"units' nodes that report faults ({first_of(sorted(short), MAX_NAMED)})"
    return replace(faults, problem=f"too few sound spares are there for {which}: plan again without them")


def find_node_health(
    units: Sequence[LiveUnit], nodes: Sequence[Manifest], pods: Sequence[Manifest], reports: FaultReports, now: float
) -> NodeHealth:
    """Return which nodes and pods of `units` are unhealthy at the wall-clock time `now`.

    Pods are matched by name: a foreign pod with the labels of a unit would keep it moving for ever.
    """
    by_name = {object_name(each): each for each in nodes}
    placed = _placed_pods(units, nodes, pods)
    faults: dict[str, dict[str, str]] = {unit.name: {} for unit in units}
    for unit, pod in placed:
        name = pod["spec"]["nodeName"]
        why = _find_fault(by_name[name], _tolerations([pod]), is_over=name in reports.recovered)
        if why and "deletionTimestamp" not in pod["metadata"]:
            faults[unit][name] = why
    tolerations = _tolerations([pod for _, pod in placed])
    known = {node for unit in units for node in (*unit.nodes, *unit.spares)}
    bad = {each for each in known if each not in by_name or any(repelling_taints(by_name[each], tolerations))}
    taken = {pod["spec"].get("nodeName") for pod in pods}
    lost = tuple(
        object_name(pod)
        for _, pod in placed
        if _is_over(pod, now) and _has_taint(by_name[pod["spec"]["nodeName"]], LOST)
    )
    return NodeHealth(faults, lost, frozenset(bad | reports.faulty | taken))


def heal(situation: Situation, decision: Decision, health: NodeHealth) -> Healing:
    """Return the unit that moves off its faulty nodes now, if any.

    None moves during a hold or while units start or drain.
    """
    stays = decision.is_held or not situation.orders.may_drain or bool(decision.scales)
    is_busy = stays or not all(unit.is_ready for unit in _running_units(situation))
    move, problems = None, []
    for unit in _running_units(situation):
        faults = health.faults.get(unit.name, {})
        if not faults:
            continue
        problem = _obstacle(situation, unit, faults, health)
        if problem:
            problems.append(problem)
        elif move is None and unit.is_ready and not is_busy:
            move = Scale(unit.name, False, f"{_describe_faults(faults)}; it moves to a spare")
    return Healing(move, tuple(problems))


def _running_units(situation: Situation) -> Iterator[LiveUnit]:
    return (unit for unit in situation.units if unit.is_on)


def _obstacle(situation: Situation, unit: LiveUnit, faults: Mapping[str, str], health: NodeHealth) -> str | None:
    """Return why a unit cannot leave its faulty nodes, and what the operator can do; None if it can.

    `faults` maps each of these nodes to its fault.
    """
    where = f"{unit.name} is on {_describe_faults(faults)}"
    if sum(node not in health.unusable for node in {*unit.nodes, *unit.spares}) < len(faults):
        return f"{where}, and no spare is left: plan again without it"
    if not any(each.phase == unit.phase and each.is_ready for each in situation.units if each is not unit):
        return f"{where}, and no other {unit.phase} unit serves: delete its pods to move it all the same"
    return None


def _find_short_nodes(units: Sequence[LiveUnit], sound: Collection[str]) -> set[str]:
    """Return all nodes of units that have fewer `sound` nodes, spares included, than they take.

    Units of different GPUs have different spares. A node that the plan gives to any unit is no spare.
    """
    taken = {node for unit in units for node in unit.nodes}
    short: set[str] = set()
    for spares in {unit.spares for unit in units}:
        own = {node for unit in units if unit.spares == spares for node in unit.nodes}
        if len((own | {*spares} - taken).intersection(sound)) < len(own):
            short |= {*own, *spares}
    return short


def _placed_pods(
    units: Sequence[LiveUnit], nodes: Sequence[Manifest], pods: Sequence[Manifest]
) -> list[tuple[str, Manifest]]:
    """Return (unit, pod) of the pods that have the names which LeaderWorkerSet gives to units', and are on `nodes`."""
    known = {object_name(node) for node in nodes}
    owner = {
        names.unit_pod_name(unit.name, worker, "leaderworkerset"): unit.name
        for unit in units
        for worker in range(len(unit.nodes))
    }
    placed = [pod for pod in pods if pod["spec"].get("nodeName") in known]
    return [(owner[object_name(pod)], pod) for pod in placed if object_name(pod) in owner]


def _tolerations(pods: Sequence[Manifest]) -> Sequence[Mapping[str, Any]]:
    """Return the tolerations of pods of units, which all have the same."""
    return pods[0]["spec"].get("tolerations") or [] if pods else []


def _is_over(pod: Manifest, now: float) -> bool:
    """Return whether the deletion of a pod should have ended: its deletion timestamp includes the grace period."""
    end = parse_instant(pod["metadata"].get("deletionTimestamp") or "")
    return end is not None and end < now


def _reported_lately(node: Manifest, settings: Mapping[str, Sequence[str]], now: float) -> bool:
    """Return whether a node without a fault had one in the last `STEADY_S`, by its conditions and taints."""
    instants = [*_change_times(node, settings["conditions"]), *(_taint_times(node) if settings.get("labels") else ())]
    return any(_is_recent(each, now) for each in instants)


def _change_times(node: Manifest, faults: Sequence[str]) -> Iterator[str]:
    """Yield the time of the last change of each of a node's fault conditions."""
    kinds = {kind for kind, _ in fault_statuses(faults)}
    return (each.get("lastTransitionTime") or "" for each in list_conditions(node) if each["type"] in kinds)


def _taint_times(node: Manifest) -> Iterator[str]:
    """Yield the times at which a node got our taint for faulty nodes."""
    taints = node["spec"].get("taints") or []
    return (each.get("timeAdded") or "" for each in taints if each["key"] == names.FAULTY_TAINT)


def _is_recent(written: str, now: float) -> bool:
    """Return whether the time `written` is within `STEADY_S` of `now`. It may be later, since clocks differ."""
    instant = parse_instant(written)
    return instant is not None and abs(now - instant) < STEADY_S


def _has_taint(node: Manifest, key: str) -> bool:
    return any(taint["key"] == key for taint in node["spec"].get("taints") or [])


def _has_only_our_taint(node: Manifest, plan: str) -> bool:
    """Return whether a node is tainted as faulty, and only by this plan."""
    taints = [taint for taint in node["spec"].get("taints") or [] if taint["key"] == names.FAULTY_TAINT]
    return bool(taints) and all(taint.get("value") == plan for taint in taints)


def _describe_faults(faults: Mapping[str, str]) -> str:
    return ", ".join(f"{node}, which {why}" for node, why in faults.items())


def _find_fault(node: Manifest, tolerations: Sequence[Mapping[str, Any]], *, is_over: bool) -> str | None:
    """Return why pods with these tolerations have to leave a node, to be put after "NODE, which".

    None if they may stay.

    With `is_over`, our own taint for faulty nodes does not count.
    """
    for taint in repelling_taints(node, tolerations):
        if taint["key"] == CORDON:
            return "is cordoned"
        if taint["key"] == names.FAULTY_TAINT:
            if is_over:
                continue
            return "reports a fault"
        if not taint["key"].startswith(KUBERNETES_TAINTS):
            return f"has the taint {taint_text(taint)}"
    return None

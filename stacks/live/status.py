"""The present state of a plan's units in a cluster: `tidemill status SPEC --context NAME`. It looks once.

    absent    it does not exist
    starting  its group is not whole yet: pods are being made, are loading, or are being made again
    ready     its whole group has joined and loaded
    failed    it will not get ready by itself: its node is down, its containers cannot start, or a gateway refuses it
    off       somebody scaled it to 0

It only reads. Rights in the plan's namespace are enough: without the right to read nodes, one that is down is noticed
when its pods are gone. The gateways are asked through the API server, which needs the right to get pods/proxy.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from planner.facts import names
from planner.facts.engines import OURS
from planner.layout.unit import Unit
from planner.plan.plan import Plan
from planner.problems.errors import TidemillError
from planner.problems.finding import Finding
from stacks.kube import pods
from stacks.kube.api import Api, connect
from stacks.kube.errors import ProviderError, RefusedError
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.readiness import is_off, missing
from stacks.live.places import StandIn, lost_nodes, stand_ins

__all__ = ["ClusterError", "LivePlan", "LiveUnit", "ask_cluster", "read_live_plan"]

WHEN_A_SPARE_COMES = "a spare takes over when that Node is deleted, or tainted node.kubernetes.io/out-of-service"

REPORT = {"units": [{"unit": str, "refused?": str}]}  # the fields read from a gateway's /readyz

State = Literal["absent", "starting", "ready", "failed", "off"]


@dataclass(frozen=True)
class LiveUnit:
    """A unit of the plan and its present state."""

    name: str
    phase: str
    ranks: int
    state: State
    reason: str | None  # why it is not ready
    stand_ins: tuple[StandIn, ...] | None  # spares that it runs on
    expert_map: Mapping[str, str] | None = None  # with `expert_load.live`: the plan's and the one in service


@dataclass(frozen=True)
class LivePlan:
    """A plan's state in the cluster. `plan_digest` is the plan's digest if all units exist as planned, else None."""

    endpoint: str
    plan_digest: str | None
    units: tuple[LiveUnit, ...]
    differing: tuple[str, ...]  # units whose launch file is not the plan's
    unseen: str | None  # why nodes could not be read
    unasked: str | None  # why a gateway could not be asked


class ClusterError(TidemillError):
    """The cluster's state cannot be read."""

    exit_status = 1

    def __init__(self, error: ProviderError) -> None:
        reason, _, fix = str(error).rpartition("; ")
        super().__init__([Finding("", None, "R201 the cluster cannot be asked", reason, fix).at("tidemill")])


def ask_cluster(plan: Plan, context: str) -> LivePlan:
    """Return the state of `plan` in the cluster of the kubeconfig context `context`.

    Raises ClusterError if the cluster cannot be asked.
    """
    try:
        return read_live_plan(plan, connect(context))
    except ProviderError as error:
        raise ClusterError(error) from None


def read_live_plan(plan: Plan, api: Api) -> LivePlan:
    """Return the state of `plan` in the cluster behind `api`. Raises ProviderError if the cluster cannot be asked."""
    down, unseen = _nodes_down(api)
    refusals, unasked = _refusals(plan, api)
    found = [(unit, api.get(_reference(plan, unit)), plan.unit_document(unit)) for unit in plan.units]
    maps = _maps_in_service(plan, api)
    units = tuple(
        replace(
            _apply_refusal(_look_at_unit(unit, live, told["spares"], api, down), refusals.get(unit.name)),
            expert_map=maps.get(unit.name),
        )
        for unit, live, told in found
    )
    differing = tuple(unit.name for unit, live, told in found if live and _launch_digest(live) != told["launch_digest"])
    is_applied = not differing and all(live for _, live, _ in found)
    return LivePlan(plan.endpoint, plan.digest if is_applied else None, units, differing, unseen, unasked)


def _nodes_down(api: Api) -> tuple[Set[str], str | None]:
    """Return (names of unready nodes, None). If the user may not list nodes, return (no names, the error's text)."""
    try:
        return pods.unready_nodes(api.list_all("v1", "Node", "")), None
    except RefusedError as error:
        if not error.is_about_rights:
            raise
        return frozenset(), str(error)


def _maps_in_service(plan: Plan, api: Api) -> Mapping[str, Mapping[str, str]]:
    """Return unit -> the digests of the plan's map and of the map in service, and why the two differ.

    All are from the controller's status; empty if units keep their maps.
    """
    if plan.kubernetes.controller is None or plan.live_maps is None:
        return {}
    namespace = plan.kubernetes.namespace
    found = api.get(Reference(names.DEPLOYMENT_API_VERSION, names.DEPLOYMENT_KIND, namespace, plan.name))
    planned = {unit.name: unit.expert_map for unit in plan.units}
    return {
        each["unit"]: {"plan": planned[each["unit"]], "in_service": each["inService"]}
        | ({"why": f"expert_load.live: {each['adopted']}"} if each["epoch"] and "adopted" in each else {})
        | ({"decision": each["decision"]} if "decision" in each else {})
        for each in ((found or {}).get("status") or {}).get("expertMaps") or ()
        if each["unit"] in planned
    }


def _refusals(plan: Plan, api: Api) -> tuple[Mapping[str, str], str | None]:
    """Return (unit -> why a gateway sends it no requests, the error's text if a gateway could not be asked, or None).

    For other engines the result is (empty, None), since their routers refuse no unit.
    """
    found: dict[str, str] = {}
    unasked = None
    if plan.engine != OURS:
        return found, unasked
    port = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]["ports"]["http"]
    for pod in _gateway_pods(plan, api):
        try:
            report = api.ask_pod(Reference.from_manifest(pod), port, "/readyz", REPORT)
        except ProviderError as error:
            unasked = str(error)
            continue
        found |= {unit["unit"]: unit["refused"] for unit in report["units"] if unit.get("refused")}
    return found, unasked


def _gateway_pods(plan: Plan, api: Api) -> list[Manifest]:
    """Return the running pods of the plan's gateways. Pods that do not run cannot be asked about units."""
    selector = ",".join(f"{key}={value}" for key, value in names.gateway_selector(plan.name).items())
    found = api.list_all("v1", "Pod", plan.kubernetes.namespace, labelSelector=selector)
    return [each for each in found if (each.get("status") or {}).get("phase") == "Running"]


def _launch_digest(live: Manifest) -> str | None:
    """Return the digest of a live unit's launch file; None if the unit has none."""
    digest = (live["metadata"].get("annotations") or {}).get(names.digest_annotation("launch"))
    return str(digest) if digest else None


def _reference(plan: Plan, unit: Unit) -> Reference:
    """Return the API reference of a unit's workload."""
    api_version, kind = names.UNIT_OBJECTS[plan.kubernetes.unit_kind]
    return Reference(api_version, kind, plan.kubernetes.namespace, unit.name)


def _look_at_unit(unit: Unit, live: Manifest | None, spares: Sequence[str], api: Api, down: Set[str]) -> LiveUnit:
    if live is None:
        return LiveUnit(unit.name, unit.phase, unit.ranks, "absent", None, None)
    selector = pods.pod_selector(live)
    assert selector
    found = api.list_all("v1", "Pod", live["metadata"]["namespace"], labelSelector=selector)
    state, reason = _judge(live, unit, spares, found, down)
    on_spares = stand_ins(unit.nodes, spares, found) or None
    return LiveUnit(unit.name, unit.phase, unit.ranks, state, reason, on_spares)


def _apply_refusal(unit: LiveUnit, refusal: str | None) -> LiveUnit:
    """Return the unit as it is; but as failed if it is up and a gateway refuses it."""
    if refusal is None or unit.state not in ("starting", "ready"):
        return unit
    return replace(unit, state="failed", reason=f"{unit.name} gets no requests: {refusal}")


def _judge(
    live: Manifest, unit: Unit, spares: Sequence[str], found: Sequence[Manifest], down: Set[str]
) -> tuple[State, str | None]:
    """Return (a unit's state, the reason or None).

    A node that is down takes precedence over all else: a unit needs all of its nodes.
    """
    if is_off(live):
        return "off", "scaled to 0"
    if lost := lost_nodes(unit.nodes, spares, found, down):
        return "failed", f"node {' and '.join(lost)} is not ready" + (f"; {WHEN_A_SPARE_COMES}" if spares else "")
    lacking = missing(live)
    if lacking is None:
        return "ready", None
    reasons = [lacking, *pods.reasons(live, found, down, events=[])]
    is_leaving = any("deletionTimestamp" in pod["metadata"] for pod in found)  # then its successor waits for the node
    has_failed = not is_leaving and any(map(pods.cannot_start, found))
    return ("failed" if has_failed else "starting"), "; ".join(reasons)

"""The plan: all decisions, frozen, as one document with a digest.

It is what a review reads, what `render`, `up`, `status` and the Pulumi program carry out, and what a later plan is
compared with. Its fields are the keys of PLAN.json. It is complete: it holds the spec, the launch documents and the
digest of every file that was read. So it can be carried out without planning again, and nobody downstream can tell
whether it was compiled (`compiler.py`) or loaded (`loaded.py`). Nothing in it depends on the machine, the hour or the
folder in which it was made.

Estimates are there in a whole plan. A plan that is only carried out does without: they may take longer than all the
rest, and change nothing that runs.

`digest` covers what runs: units, nodes, maps, launch documents, the schedule, what pods need, and the spec's sections
that manifests are made from, as far as they differ from their defaults. A field that a later version adds leaves the
digests of earlier plans as they are, and a better estimate is not another plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, Literal

from pydantic import ConfigDict, Field

from planner.cost.cost import Cost
from planner.estimate.failures import Loss
from planner.estimate.kv_cache import KvCache
from planner.estimate.links import Traffic
from planner.estimate.uptime import Uptime
from planner.facts import names
from planner.facts.digest import digest_of, pretty_json
from planner.facts.engines import OURS
from planner.facts.part import Maybe, Part
from planner.facts.terms import EngineName, Phase
from planner.layout.layout import PhaseLayout
from planner.layout.unit import Unit
from planner.plan.expected import Balance, Demand, Performance, Search
from planner.plan.launch import LaunchDocument, with_map
from planner.plan.pods import PhasePods, pods_of
from planner.plan.row import Row
from planner.plan.sections import (
    Digest,
    Figures,
    LaunchDocuments,
    Map,
    Memory,
    ModelShape,
    PhaseShape,
    PlacementQuality,
    PlannedUnit,
    Schedule,
    Warned,
)
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.schedule.timetable import Timetable, timetable_of
from planner.search.decision import Decision
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.schema import GatewaySpec, Spec
from planner.spec.section import Section

__all__ = ["PLAN_VERSION", "Plan", "document_digest", "plan_digest", "sealed"]

PLAN_VERSION = 3
UNSEALED = f"sha256:{'0' * 64}"
ESTIMATES = (  # sections from which nothing that runs follows
    "balance",
    "failures",
    "traffic",
    "performance",
    "demand",
    "kv_cache",
    "uptime",
    "cost",
    "report",
    "diff",
)
DEPLOYED_OF_UNIT = ("name", "phase", "nodes", "ranks", "unit_digest", "expert_map")  # not why it has these nodes


class Plan(Part):
    """What was decided for a spec, why, and what is expected of it."""

    model_config = ConfigDict(serialize_by_alias=True)

    # The first of these that is wrong is the one that a reader is told of.
    version: Literal[3]
    units: tuple[PlannedUnit, ...] = Field(min_length=1)
    expert_maps: dict[str, Map]  # by their digests
    launch_documents: LaunchDocuments  # by file name; maps are named in them
    name: str
    written: dict[str, Any] = Field(alias="spec")  # as its user would write it, with defaults and numbers for `auto`
    digest: Digest
    document_digest: Digest
    spec_digest: Digest
    inputs: dict[str, Digest]  # of every file that the spec names, by the name that it has there
    phases: dict[Phase, PhaseShape]
    memory: dict[Phase, Memory]  # none where ranks share the host's
    runnable: bool
    why_not: tuple[str, ...]
    refusals: tuple[Warned, ...]  # why its engine cannot run it
    warnings: tuple[Warned, ...]  # what is lost, though it plans
    model: ModelShape
    gpu: Figures
    phase_gpus: Maybe[dict[Phase, Figures]] = None  # of phases that run on another
    sources: dict[str, str]  # of each number that no spec gives
    assumed: dict[str, str]  # those that nobody read anywhere
    decisions: tuple[Decision, ...]  # what the spec leaves open
    placement: PlacementQuality
    schedule: Maybe[Schedule] = None  # none where all units are always on
    search: Maybe[Search] = None  # none where no speed decided

    balance: Maybe[dict[Phase, Balance]] = None
    failures: Maybe[dict[Phase, dict[str, Loss]]] = None
    traffic: Maybe[dict[Phase, Traffic]] = None  # none where links are not known
    performance: Maybe[dict[Phase, Performance]] = None
    demand: Maybe[dict[Phase, Demand]] = None
    kv_cache: Maybe[KvCache] = None
    uptime: Maybe[Uptime] = None
    cost: Maybe[Cost] = None
    report: Maybe[tuple[Row, ...]] = None
    diff: Maybe[dict[str, Any]] = None  # what the change from another plan does: only of a plan that is shown beside it

    def as_json(self) -> dict[str, Any]:
        """Return PLAN.json's content."""
        return self.model_dump(mode="json")

    def changed(self, **sections: Any) -> "Plan":
        """Return a copy with other sections, which are taken as they are. Its digests are still of the old ones."""
        known = {name: getattr(self, name) for name in type(self).model_fields} | sections
        return type(self).model_construct(**known | {"spec": known["written"]})

    def without_estimates(self) -> "Plan":
        """Return what a rendered folder keeps: the same, however the plan was made, and no warning about figures."""
        maps = {sha256: each.model_copy(update={"coverage": None}) for sha256, each in self.expert_maps.items()}
        kept = self.changed(**dict.fromkeys(ESTIMATES), expert_maps=maps, warnings=())
        return kept.changed(document_digest=document_digest(kept.as_json()))

    def beside(self, diff: dict[str, Any]) -> "Plan":
        """Return the plan as it is shown beside another, with what the change from that one does."""
        shown = self.changed(diff=diff)
        return shown.changed(document_digest=document_digest(shown.as_json()))

    @cached_property
    def spec(self) -> Spec:
        """Return the spec that was planned."""
        return Spec.model_validate(self.written)

    @property
    def engine(self) -> EngineName:
        """Return what serves."""
        return self.spec.engine_name

    @property
    def kubernetes(self) -> KubernetesSpec:
        """Return what manifests are made from."""
        return self.spec.kubernetes

    @property
    def gateway(self) -> GatewaySpec:
        """Return what the gateway is told."""
        return self.spec.gateway

    @property
    def drain_s(self) -> float:
        """Return the time that running answers have when their process is told to end."""
        return self.spec.drain_s

    @cached_property
    def pods(self) -> Mapping[Phase, PhasePods]:
        """Return what the pods of each phase need that no launch file tells."""
        return pods_of(self.spec, {phase: each.weights_bytes for phase, each in self.memory.items()})

    @cached_property
    def timetable(self) -> Timetable | None:
        """Return which units are on when; None where all are always on."""
        return timetable_of(self.spec, self.units)

    @property
    def endpoint(self) -> str:
        """Return the URL at which clients inside the cluster reach the gateway, without `/v1`."""
        return names.cluster_endpoint(self.name, self.kubernetes.namespace, self.gateway.port)

    @property
    def switches_units(self) -> bool:
        """True if its schedule turns some units off at some time."""
        return self.timetable is not None and self.timetable.switches

    @cached_property
    def documents(self) -> dict[str, LaunchDocument]:
        """Return the launch documents by file name, with their maps written out."""
        maps = {sha256: each.physical_to_logical for sha256, each in self.expert_maps.items()}
        return {file: with_map(each, maps) for file, each in self.launch_documents.items()}

    def unit_document(self, unit: Unit) -> LaunchDocument:
        """Return the launch document of `unit`."""
        return self.documents[names.launch_file(unit.name)]

    def launch_files(self) -> dict[str, str]:
        """Return file name -> text, for the runtime. Raises InfeasibleError when it cannot run the plan."""
        self.require_runnable()
        return {name: pretty_json(document) for name, document in self.documents.items()}

    def require_runnable(self) -> None:
        """Raise InfeasibleError, with every reason, when the plan's engine cannot run it."""
        if self.refusals:
            raise InfeasibleError(self.refusals)

    def require_local(self) -> None:
        """Raise InfeasibleError when this machine cannot run the plan: other engines run in images, on GPUs."""
        self.require_runnable()
        if self.engine != OURS:
            reason, fix = (
                "other engines run only in a cluster, from their images",
                "write manifests with tidemill render and apply them",
            )
            finding = Finding("engine", self.engine, "S753 must be tidemill to run on this machine", reason, fix)
            raise InfeasibleError([finding.at(self.name)])

    def units_of(self, phase: Phase) -> tuple[PlannedUnit, ...]:
        """Return the units of `phase`, in order."""
        return tuple(unit for unit in self.units if unit.phase == phase)

    @property
    def map_of(self) -> dict[Phase, str]:
        """Return the digest of each phase's map."""
        return {unit.phase: unit.expert_map for unit in self.units}

    @property
    def nodes_by_unit(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes of its units, by name."""
        return {unit.name: tuple(unit.nodes) for unit in self.units}

    def rows_for(self, layout: PhaseLayout, num_layers: int) -> tuple[tuple[int, ...], ...] | None:
        """Return the phase's map where it has these layers, slots and experts; any other is no start for new maps."""
        sha256 = self.map_of.get(layout.phase)
        rows = self.expert_maps[sha256].physical_to_logical if sha256 else ()
        experts = set(range(layout.num_logical_experts))
        fits = len(rows) == num_layers and all(
            len(row) == layout.num_physical_experts and set(row) == experts for row in rows
        )
        return rows if fits else None


def sealed(sections: Mapping[str, Any], make_rows: "Callable[[Plan], tuple[Row, ...]] | None" = None) -> Plan:
    """Return the plan of these sections, with the digests of what they say; and with a report, if rows are made."""
    unsealed = dict.fromkeys(("digest", "document_digest", "spec_digest"), UNSEALED)
    plan = Plan.model_validate({"version": PLAN_VERSION, **unsealed, **sections})
    if make_rows is not None:
        plan = plan.changed(report=make_rows(plan))
    document = plan.as_json()
    document["spec_digest"] = digest_of(plan.spec.model_dump(mode="json"))
    document["digest"] = plan_digest(document, plan.spec)
    digests = {key: document[key] for key in ("spec_digest", "digest")}
    return plan.changed(**digests, document_digest=document_digest(document))


def document_digest(document: Mapping[str, Any]) -> str:
    """Digest all of the plan JSON `document` but this digest itself, so that no reviewer reads what nobody planned."""
    return digest_of({key: value for key, value in document.items() if key != "document_digest"})


def plan_digest(document: Mapping[str, Any], spec: Spec) -> str:
    """Digest what the plan JSON `document` deploys; `spec` is the one that it holds."""
    weights = {phase: each["weights_bytes"] for phase, each in document["memory"].items()}
    return digest_of(
        {
            "name": document["name"],
            "runnable": document["runnable"],
            "phases": document["phases"],
            "units": [{key: unit[key] for key in DEPLOYED_OF_UNIT} for unit in document["units"]],
            "expert_maps": {sha256: each["physical_to_logical"] for sha256, each in document["expert_maps"].items()},
            "launch_documents": document["launch_documents"],
            "schedule": document.get("schedule"),
            "pods": {phase: asdict(each) for phase, each in pods_of(spec, weights).items()},
            "kubernetes": _as_deployed(spec.kubernetes),
            "gateway": _as_deployed(spec.gateway),
        }
    )


def _as_deployed(section: Section) -> dict[str, Any]:
    """The section as parsed, so that 1GiB and 1024MiB deploy the same, without what is as by default."""
    return section.model_dump(mode="json", exclude_defaults=True)

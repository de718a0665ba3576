"""The plan: all decisions, frozen in one document with a digest.

Reviewers read it. `render`, `up`, `status` and the Pulumi program carry it out. Later plans are compared with it. Its
fields are the keys of PLAN.json. It is complete: it holds the spec, the launch documents and the digest of every input
file. So nobody has to plan again, and a compiled plan (`compiler.py`) is the same as a loaded one (`load.py`). Nothing
in it depends on the machine, the time or the folder in which it was made.

A full plan has estimates. A plan that is only rendered or run omits them, because they change nothing that runs and may
take longer than the rest of planning.

`digest` covers what runs: units, nodes, maps, launch documents, the schedule, the pods' needs, and the non-default
values of the spec sections behind the manifests. So a new spec field does not change old digests, and a better estimate
does not make another plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from planner.cost.cost import Cost, estimate_cost
from planner.estimate.failures import Loss
from planner.estimate.kv_cache import KvCache
from planner.facts import names
from planner.facts.digest import digest_of, pretty_json
from planner.facts.engines import OURS
from planner.facts.part import Digest, Maybe, Part
from planner.facts.terms import EngineName, Phase
from planner.layout.layout import PhaseLayout
from planner.layout.unit import Unit
from planner.plan.expected import Balance, Demand, Performance, Promise, Search
from planner.plan.launch import LaunchDocument, move_disk, restore_map
from planner.plan.pods import PhasePods, pods_of
from planner.plan.row import Row
from planner.plan.sections import (
    Figures,
    JsonFindings,
    LaunchDocuments,
    LiveMap,
    Map,
    Memory,
    ModelShape,
    PhaseShape,
    PlacementQuality,
    PlannedUnit,
    Reads,
    Schedule,
)
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.schedule.schedule import Timetable, plan_schedule
from planner.spec.decision import Decision
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.schema import GatewaySpec, Spec
from planner.spec.section import Section

PLAN_VERSION: Final = 3
MAX_DECISIONS = 1000  # one for each field outside lists, and for each of 366 other days
UNSEALED = f"sha256:{'0' * 64}"
DEPLOYED_OF_UNIT = (
    "name",
    "phase",
    "nodes",
    "ranks",
    "unit_digest",
    "expert_map",
)  # all of a unit but `why`


class Plan(Part):
    """The decisions for a spec, the reasons for them, and the expected results."""

    model_config = ConfigDict(serialize_by_alias=True)

    # Validation reports the first wrong field, so the most telling ones come first.
    version: Literal[3]
    units: tuple[PlannedUnit, ...] = Field(min_length=1)
    expert_maps: dict[str, Map]  # by their digests
    launch_documents: LaunchDocuments  # by file name; maps are named in them
    name: str
    written: dict[str, Any] = Field(alias="spec")  # the user's spec, with defaults and with numbers for `auto`
    digest: Digest
    document_digest: Digest
    spec_digest: Digest
    inputs: dict[str, Digest]  # digest of each file that the spec names, by that name
    phases: dict[Phase, PhaseShape]
    memory: dict[Phase, Memory]  # empty if ranks share host memory
    reads: Maybe[dict[Phase, Reads]] = None  # of phases without `memory`
    runnable: bool
    why_not: tuple[str, ...]
    refusals: JsonFindings  # reasons why the engine cannot run it
    warnings: JsonFindings  # drawbacks of a plan that does work
    model: ModelShape
    gpu: Figures
    phase_gpus: Maybe[dict[Phase, Figures]] = None  # of phases on another GPU
    sources: dict[str, str]  # of each number that the spec does not give
    assumed: dict[str, str]  # numbers without a published source
    decisions: Annotated[tuple[Decision, ...], Field(max_length=MAX_DECISIONS)]  # values that the spec left open
    placement: PlacementQuality
    schedule: Maybe[Schedule] = None  # None if all units are always on
    live_maps: Maybe[dict[Phase, LiveMap]] = None  # None if units keep their maps until they restart
    search: Maybe[Search] = None  # None if speed decided nothing

    balance: Maybe[dict[Phase, Balance]] = None
    failures: Maybe[dict[Phase, dict[str, Loss]]] = None
    performance: Maybe[dict[Phase, Performance]] = None
    demand: Maybe[dict[Phase, Demand]] = None
    kv_cache: Maybe[KvCache] = None
    cost: Maybe[Cost] = None
    report: Maybe[tuple[Row, ...]] = None
    diff: Maybe[dict[str, Any]] = None  # only of a plan shown beside another: the change from that one

    def as_json(self) -> dict[str, Any]:
        """Return the content of PLAN.json."""
        return self.model_dump(mode="json")

    def with_sections(self, **sections: Any) -> "Plan":
        """Return a copy with these sections replaced.

        The sections are not validated, and the digests are not recomputed.
        """
        known = {name: getattr(self, name) for name in type(self).model_fields} | sections
        return type(self).model_construct(**known | {"spec": known["written"]})

    def with_diff(self, diff: dict[str, Any]) -> "Plan":
        """Return a copy with `diff`, its difference from another plan, to show both together."""
        shown = self.with_sections(diff=diff)
        return shown.with_sections(document_digest=document_digest(shown.as_json()))

    @cached_property
    def spec(self) -> Spec:
        """Return the spec that was planned."""
        return Spec.model_validate(self.written)

    @property
    def engine(self) -> EngineName:
        """Return the serving engine's name."""
        return self.spec.engine_name

    @property
    def kubernetes(self) -> KubernetesSpec:
        """Return the spec's `kubernetes` section, from which manifests are made."""
        return self.spec.kubernetes

    @property
    def gateway(self) -> GatewaySpec:
        """Return the spec's `gateway` section."""
        return self.spec.gateway

    @property
    def drain_s(self) -> float:
        """Return the seconds that running requests get after their process gets the signal to stop."""
        return self.spec.drain_s

    @cached_property
    def pods(self) -> Mapping[Phase, PhasePods]:
        """Return phase -> what its pods need that no launch file states: devices and weights."""
        return pods_of(self.spec, {phase: each.read_bytes for phase, each in self.memory.items()})

    @cached_property
    def timetable(self) -> Timetable | None:
        """Return the schedule of the units; None if all units are always on."""
        return plan_schedule(self.spec, self.units)

    @property
    def running_schedule(self) -> Timetable | None:
        """Return the schedule as it runs; None if all units stay on, as they do without a controller."""
        return self.timetable if self.kubernetes.controller else None

    def usd_of_day(self, day: str) -> float | None:
        """Return the dollars that a date or a weekday costs, with all units on if no controller turns them off.

        Return None without a price. The plan's section `cost` has ordinary days only.
        """
        table = self.running_schedule
        found = estimate_cost(self.spec, table and table.for_day(day), self.units, {})
        return None if found is None else found.usd_per_day

    @property
    def endpoint(self) -> str:
        """Return the URL at which clients inside the cluster reach the gateway, without `/v1`."""
        return names.cluster_endpoint(self.name, self.kubernetes.namespace, self.gateway.port)

    @property
    def switches_units(self) -> bool:
        """Return whether the schedule turns some units off at some time."""
        return self.timetable is not None and self.timetable.switches

    @cached_property
    def documents(self) -> dict[str, LaunchDocument]:
        """Return the launch documents by file name, with their maps restored."""
        maps = {sha256: each.physical_to_logical for sha256, each in self.expert_maps.items()}
        return {file: restore_map(each, maps) for file, each in self.launch_documents.items()}

    def unit_document(self, unit: Unit) -> LaunchDocument:
        """Return the launch document of `unit`."""
        return self.documents[names.launch_file(unit.name)]

    def launch_files(self, disk: str | None = None) -> dict[str, str]:
        """Return file name -> text of all launch files. Raises InfeasibleError if the engine cannot run the plan.

        `disk`, if given, is the folder in which ranks keep KV on a disk, instead of the spec's `kv_cache.disk.path`.
        """
        self.require_runnable()
        documents = self.documents
        if disk is not None:
            documents = {name: move_disk(document, disk) for name, document in documents.items()}
        return {name: pretty_json(document) for name, document in documents.items()}

    def require_runnable(self) -> None:
        """Raise InfeasibleError with every reason if the plan's engine cannot run it."""
        if self.refusals:
            raise InfeasibleError(self.refusals)

    def require_local(self) -> None:
        """Raise InfeasibleError if this machine cannot run the plan. Other engines need images and GPUs."""
        self.require_runnable()
        if self.engine != OURS:
            reason, fix = (
                "other engines run only in a cluster, from their images",
                "write manifests with tidemill render and apply them",
            )
            finding = Finding("engine", self.engine, "S753 must be tidemill to run on this machine", reason, fix)
            raise InfeasibleError([finding.at(self.name)])

    def gets_epochs(self, unit: Unit) -> bool:
        """Return whether the controller hands new expert maps to a unit while it serves."""
        return self.kubernetes.controller is not None and unit.phase in (self.live_maps or {})

    def units_of(self, phase: Phase) -> tuple[PlannedUnit, ...]:
        """Return the units of `phase`, in order."""
        return tuple(unit for unit in self.units if unit.phase == phase)

    @property
    def map_digests(self) -> dict[Phase, str]:
        """Return the digest of each phase's map."""
        return {unit.phase: unit.expert_map for unit in self.units}

    @property
    def promises(self) -> dict[str, Promise | None]:
        """Return latency in the spec's SLO -> its promise and prediction; None for one that cannot be predicted."""
        promised = [name for name, value in self.spec.slo.model_dump().items() if value is not None]
        of_phases = [each.slo or {} for each in (self.performance or {}).values()]
        found = {str(name): promise for slo in of_phases for name, promise in slo.items()}
        return {name: found.get(name) for name in promised}

    @property
    def nodes_by_unit(self) -> dict[str, tuple[str, ...]]:
        """Return unit name -> names of its nodes."""
        return {unit.name: tuple(unit.nodes) for unit in self.units}

    def rows_for(self, layout: PhaseLayout, num_layers: int) -> tuple[tuple[int, ...], ...] | None:
        """Return the phase's map if its GPUs, slots and experts match `layout`, and its layers `num_layers`; else None.

        A search for a new map starts from the returned map.
        """
        shape = self.phases.get(layout.phase)
        if shape is None or shape.ep_size != layout.ep_size:
            return None
        rows = self.expert_maps[self.map_digests[layout.phase]].physical_to_logical
        experts = set(range(layout.num_logical_experts))
        fits = len(rows) == num_layers and all(
            len(row) == layout.num_physical_experts and set(row) == experts for row in rows
        )
        return rows if fits else None


def seal_plan(sections: Mapping[str, Any], make_rows: "Callable[[Plan], tuple[Row, ...]] | None" = None) -> Plan:
    """Build the plan from its sections, with its digests and, if `make_rows` is given, with its report."""
    unsealed = dict.fromkeys(("digest", "document_digest", "spec_digest"), UNSEALED)
    plan = Plan.model_validate({"version": PLAN_VERSION, **unsealed, **sections})
    if make_rows is not None:
        plan = plan.with_sections(report=make_rows(plan))
    document = plan.as_json()
    document["spec_digest"] = digest_of(plan.spec.model_dump(mode="json"))
    document["digest"] = plan_digest(document, plan.spec)
    digests = {key: document[key] for key in ("spec_digest", "digest")}
    return plan.with_sections(**digests, document_digest=document_digest(document))


def document_digest(document: Mapping[str, Any]) -> str:
    """Digest the whole plan JSON except `document_digest` itself, so that edits of review text are noticed too."""
    return digest_of({key: value for key, value in document.items() if key != "document_digest"})


def plan_digest(document: Mapping[str, Any], spec: Spec) -> str:
    """Digest the part of the plan JSON that is deployed. `spec` is the plan's spec."""
    weights = {
        phase: each["weights_bytes"] - each["weights"].get("absorbed", 0) for phase, each in document["memory"].items()
    }
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
            "kubernetes": _non_default_fields(spec.kubernetes),
            "gateway": _non_default_fields(spec.gateway),
            **({"live": spec.expert_load.live.model_dump(mode="json")} if spec.expert_load.live else {}),
        }
    )


def _non_default_fields(section: Section) -> dict[str, Any]:
    """Return the section's non-default values as parsed, so that 1GiB and 1024MiB deploy the same."""
    return section.model_dump(mode="json", exclude_defaults=True)

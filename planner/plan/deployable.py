"""What of a plan is carried out. `render`, `up`, `status` and the Pulumi program see this and nothing else of a plan.

A plan that was just compiled gives one (`Plan.deployable`), and so does a plan that was read from its JSON
(`LoadedPlan.deployable`). Nobody downstream can tell which it was.

The plan's digest covers what runs: units, nodes, maps, launch documents, the schedule, what pods need, and the spec's
sections that manifests are made from, as far as they differ from their defaults: a field that a later version adds
leaves the digests of earlier plans as they are. What is only expected of a plan, or told about it, stays outside:
traffic, failures, sampled balance, sources, reasons, and of memory all but the weights that ranks load. So a better
estimate is not another plan.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from planner.facts import names
from planner.facts.digest import digest_of, pretty_json
from planner.facts.engines import OURS
from planner.facts.terms import EngineName, Phase
from planner.layout.unit import Unit
from planner.plan.launch import LaunchDocument
from planner.plan.pods import PhasePods, pods_of
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.schedule.timetable import Timetable
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.schema import GatewaySpec, Spec
from planner.spec.section import Section

__all__ = ["Deployable", "document_digest", "plan_digest"]

DEPLOYED_OF_UNIT = ("name", "phase", "nodes", "ranks", "unit_digest", "expert_map")  # not why it has these nodes


@dataclass(frozen=True)
class Deployable:
    """One plan, ready to be rendered or started."""

    name: str
    engine: EngineName
    digest: str
    kubernetes: KubernetesSpec
    gateway: GatewaySpec
    units: tuple[Unit, ...]
    pods: Mapping[Phase, PhasePods]
    timetable: Timetable | None  # none where all units are always on
    drain_s: float  # for answers that run when their process is told to end
    launch_documents: Mapping[str, LaunchDocument]  # by file name
    refusals: tuple[Finding, ...]  # why its engine cannot run it
    warnings: tuple[Finding, ...]  # what is lost, though it runs

    @property
    def endpoint(self) -> str:
        """Return the URL at which clients inside the cluster reach the gateway, without `/v1`."""
        return names.cluster_endpoint(self.name, self.kubernetes.namespace, self.gateway.port)

    @property
    def switches_units(self) -> bool:
        """True if its schedule turns some units off at some time."""
        return self.timetable is not None and self.timetable.switches

    def launch_files(self) -> dict[str, str]:
        """Return file name -> text, for the runtime. Raises InfeasibleError when it cannot run the plan."""
        self.require_runnable()
        return {name: pretty_json(document) for name, document in self.launch_documents.items()}

    def require_runnable(self) -> None:
        """Raise InfeasibleError, with every reason, when the plan's engine cannot run it."""
        if self.refusals:
            raise InfeasibleError(self.refusals)

    def units_of(self, phase: Phase) -> tuple[Unit, ...]:
        """Return the units of `phase`, in order."""
        return tuple(unit for unit in self.units if unit.phase == phase)

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

    def unit_document(self, unit: Unit) -> LaunchDocument:
        """Return the launch document of `unit`."""
        return self.launch_documents[names.launch_file(unit.name)]


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

"""What is carried out of a plan: all that its digest covers, without what is only expected of it.

`render` and `up` need no more, and estimates may take longer than everything here: for SGLang's units of the published
system, the maps with one more slot take three times as long as all the rest.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from planner.estimate.coverage import FailureDomains
from planner.expert_map import ExpertMap
from planner.facts import names
from planner.facts.loads import Loads
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import MemoryPlan
from planner.layout.unit import Unit
from planner.placement.place import Placement
from planner.plan.deployable import Deployable, plan_digest
from planner.plan.launch import LaunchDocument, without_map
from planner.plan.map_json import map_json
from planner.plan.pods import pods_of
from planner.problems.finding import Finding
from planner.schedule.schedule import DaySchedule, OtherDays, Step
from planner.schedule.timetable import timetable_of
from planner.spec.schema import Spec

__all__ = ["DecidedPlan", "Grounds"]


@dataclass(frozen=True)
class Grounds:
    """What a plan is decided by, and its estimates are made from."""

    loads: Loads  # of experts
    places: Mapping[Phase, FailureDomains]  # in which the ranks of a phase's units stand


@dataclass(frozen=True)
class DecidedPlan:
    """What was decided for `spec`. `Plan` adds why, and what comes of it."""

    spec: Spec
    layouts: tuple[PhaseLayout, ...]
    memory: tuple[MemoryPlan, ...]  # none where ranks share the host's
    placement: Placement
    schedule: DaySchedule | None  # none where all units are always on
    expert_maps: Mapping[Phase, ExpertMap]
    launch_documents: Mapping[str, LaunchDocument]  # by file name
    refusals: tuple[Finding, ...]  # why its engine cannot run it
    warnings: tuple[Finding, ...]  # what is lost, though it plans

    @property
    def name(self) -> str:
        """Return the name that the spec, its units and its Kubernetes objects share."""
        return self.spec.name

    @property
    def units(self) -> tuple[Unit, ...]:
        """All of them, phase by phase."""
        return self.placement.units

    @cached_property
    def digest(self) -> str:
        """Digest all that is deployed: equal digests, equal deployments, whatever is expected of them."""
        return plan_digest(self.sections, self.spec)

    @cached_property
    def deployable(self) -> Deployable:
        """What of it is carried out."""
        return Deployable(
            name=self.name,
            engine=self.spec.engine_name,
            digest=self.digest,
            kubernetes=self.spec.kubernetes,
            gateway=self.spec.gateway,
            units=self.units,
            pods=pods_of(self.spec, {each.phase: each.weight_bytes for each in self.memory}),
            timetable=timetable_of(self.spec, self.units),
            drain_s=self.spec.drain_s,
            launch_documents=self.launch_documents,
            refusals=self.refusals,
            warnings=self.warnings,
        )

    @cached_property
    def sections(self) -> dict[str, Any]:
        """Return the sections of the plan JSON that the digest covers; a reader of maps finds more there than it."""
        sections: dict[str, Any] = {
            "name": self.name,
            "runnable": not self.refusals,
            "phases": {layout.phase: _phase_json(layout) for layout in self.layouts},
            "memory": {each.phase: _memory_json(each) for each in self.memory},
            "units": [self._unit_json(unit) for unit in self.units],
            "launch_documents": {file: without_map(each) for file, each in self.launch_documents.items()},
            "expert_maps": {each.sha256: map_json(each) for each in self.expert_maps.values()},
        }
        return sections | ({"schedule": _schedule_json(self.schedule)} if self.schedule else {})

    def _unit_json(self, unit: Unit) -> dict[str, Any]:
        return {
            "name": unit.name,
            "phase": unit.phase,
            "nodes": list(unit.nodes),
            "ranks": len(unit.ranks),
            "why": unit.why,
            "unit_digest": self.launch_documents[names.launch_file(unit.name)]["unit_digest"],
            "expert_map": self.expert_maps[unit.phase].sha256,
        }


def _phase_json(layout: PhaseLayout) -> dict[str, Any]:
    return {
        "gpu": layout.gpu,
        "ep_size": layout.ep_size,
        "attention_tp": layout.attention_tp,
        "dp_size": layout.dp_size,
        "nodes_per_unit": layout.nodes_per_unit,
        "num_logical_experts": layout.num_logical_experts,
        "num_physical_experts": layout.num_physical_experts,
        "slots_per_gpu": layout.slots_per_gpu,
        "routed_per_gpu": layout.slots_per_gpu,
        "shared_per_gpu": layout.shared_per_gpu,
        "overlap": layout.overlap,
    }


def _memory_json(memory: MemoryPlan) -> dict[str, Any]:
    weights = asdict(memory.weights)
    slots = memory.num_slots * weights.pop("slot")
    if not memory.weights.towers:
        del weights["towers"]
    fixed = {"kv_bytes_per_request": memory.kv_bytes_per_request} if memory.kv_bytes_per_request else {}
    headroom = {"headroom_bytes": memory.headroom} if memory.headroom else {}
    return (
        {
            "weights_bytes": memory.weight_bytes,
            "weights": weights | {"routed": slots},
            "kv_bytes_per_token": memory.kv_bytes_per_token,
            "activation_bytes": memory.activations,
            "buffer_bytes": memory.buffers,
            "reserve_bytes": memory.reserve,
            "cuda_graph_bytes": memory.cuda_graphs,
            "kv_tokens": memory.kv_tokens,
            "full_requests": memory.full_requests,
            "gpu_bytes": memory.gpu_bytes,
        }
        | fixed
        | headroom
    )


def _schedule_json(schedule: DaySchedule) -> dict[str, Any]:
    return {
        "timezone": schedule.timezone,
        "steps": [_step_json(step) for step in schedule.steps],
        "transitions": [asdict(each) for each in schedule.transitions],
        "peak_nodes": schedule.peak_nodes,
        "mean_nodes": schedule.mean_nodes,
        "mean_nodes_taken": schedule.mean_nodes_taken,
        "released_node_hours_per_day": schedule.released_node_hours,
        "released_gpu_hours_per_day": schedule.released_gpu_hours,
        **({"other_days": [_other_json(each) for each in schedule.other_days]} if schedule.other_days else {}),
        **({"batch_queue": schedule.batch_queue} if schedule.batch_queue else {}),
    }


def _other_json(other: OtherDays) -> dict[str, Any]:
    return {
        "days": list(other.days),
        "steps": [_step_json(step) for step in other.steps],
        "transitions": [asdict(each) for each in other.transitions],
        "mean_nodes": other.mean_nodes,
        "mean_nodes_taken": other.mean_nodes_taken,
    }


def _step_json(step: Step) -> dict[str, Any]:
    counts = {f"{phase}_units": number for phase, number in step.num_units.items()}
    racks = {"free_racks": step.free_racks} if step.free_racks is not None else {}
    return {"at": step.at, "minutes": step.minutes, "nodes": step.num_nodes, "units": list(step.units)} | counts | racks

"""What the passes decided for a spec, and the plan that this makes.

`render` and `up` need no more. Estimates (`estimated.py`) may take longer than everything here: for SGLang's units of
the published system, the maps with one more slot take three times as long as all the rest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from planner.estimate.coverage import FailureDomains
from planner.expert_map import ExpertMap
from planner.facts import names
from planner.facts.catalog import ASSUMED, Gpu
from planner.facts.loads import Loads
from planner.facts.model import Model
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import MemoryPlan
from planner.layout.unit import Unit
from planner.placement.place import Placement
from planner.plan.launch import LaunchDocument, without_map
from planner.plan.plan import Plan, sealed
from planner.plan.sections import Map, PlannedUnit
from planner.problems.finding import Finding
from planner.problems.fix import applied
from planner.rules.schedule import without_spent
from planner.schedule.schedule import DaySchedule, OtherDays, Step
from planner.search.auto import Decided
from planner.search.decision import DEFAULT, Decision
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec

if TYPE_CHECKING:
    from planner.search.layouts import LayoutSearch
    from planner.search.ranked import PhaseSearch

__all__ = ["Compiled", "Grounds", "by_phase"]


@dataclass(frozen=True)
class Grounds:
    """What a plan is decided by, and its estimates are made from."""

    loads: Loads  # of experts
    places: Mapping[Phase, FailureDomains]  # in which the ranks of a phase's units stand


@dataclass(frozen=True)
class Compiled:
    """All that is decided, as the passes have it."""

    choice: Decided
    grounds: Grounds
    layouts: tuple[PhaseLayout, ...]
    memory: tuple[MemoryPlan, ...]  # none where ranks share the host's
    placement: Placement
    schedule: DaySchedule | None  # none where all units are always on
    expert_maps: Mapping[Phase, ExpertMap]
    launch_documents: Mapping[str, LaunchDocument]  # by file name
    refusals: tuple[Finding, ...]  # why its engine cannot run it
    warnings: tuple[Finding, ...]  # what is lost, though it plans

    @property
    def resolved(self) -> ResolvedSpec:
        """Return the spec with what it names, and a number for every `auto`."""
        return self.choice.spec

    @property
    def spec(self) -> Spec:
        """Return its fields alone."""
        return self.resolved.written

    @property
    def name(self) -> str:
        """Return the name that the spec, its units and its Kubernetes objects share."""
        return self.spec.name

    @property
    def model(self) -> Model:
        """Return the shapes of its model."""
        return self.resolved.model

    @property
    def gpu(self) -> Gpu:
        """Return the cluster's GPU."""
        return self.resolved.gpu

    @property
    def phase_gpus(self) -> dict[Phase, Gpu]:
        """Return the GPUs of phases that run on another."""
        own = self.resolved.cluster.gpu_name
        return {each.phase: self.resolved.gpu_of(each.phase) for each in self.layouts if each.gpu != own}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return what the spec leaves open."""
        return self.choice.decisions

    @property
    def search(self) -> "LayoutSearch | None":
        """Return the layouts that were tried; None where no speed decided."""
        return self.choice.search

    @property
    def units(self) -> tuple[Unit, ...]:
        """All of them, phase by phase."""
        return self.placement.units

    @property
    def sources(self) -> dict[str, str]:
        """Return the source of each number that no spec gives."""
        figures = {f"cluster.gpu.{figure}": source for figure, source in self.gpu.sources.items()}
        for phase, gpu in self.phase_gpus.items():
            figures |= {f"{phase}.gpu.{figure}": source for figure, source in gpu.sources.items()}
        parts = {f"{each.phase}.{part}": source for each in self.memory for part, source in each.sources.items()}
        return {"model": self.model.source} | figures | parts

    @property
    def assumed(self) -> dict[str, str]:
        """Those that nobody read anywhere."""
        return {name: source for name, source in self.sources.items() if source.startswith(ASSUMED)}

    @cached_property
    def plan(self) -> Plan:
        """Return the plan."""
        return sealed(self.sections)

    @property
    def sections(self) -> dict[str, Any]:
        """Return the plan's sections, but its digests."""
        return {
            "name": self.name,
            "spec": _with_defaults(self.resolved, self.decisions),
            "inputs": dict(self.resolved.inputs),
            "runnable": not self.refusals,
            "why_not": tuple(problem.message for problem in self.refusals),
            "refusals": self.refusals,
            "warnings": self.warnings,
            "model": self.model,
            "gpu": self.gpu,
            "phase_gpus": self.phase_gpus or None,
            "sources": self.sources,
            "assumed": self.assumed,
            "decisions": self.decisions,
            "phases": by_phase(self.layouts),
            "memory": by_phase(self.memory),
            "placement": self.placement,
            "units": tuple(map(self._planned, self.units)),
            "launch_documents": {file: without_map(each) for file, each in self.launch_documents.items()},
            "expert_maps": {each.sha256: self._map(each) for each in self.expert_maps.values()},
            "schedule": _schedule(self.schedule) if self.schedule else None,
            "search": _search(self.search) if self.search else None,
        }

    def _planned(self, unit: Unit) -> PlannedUnit:
        unit_digest = self.launch_documents[names.launch_file(unit.name)]["unit_digest"]
        return PlannedUnit(**vars(unit), unit_digest=unit_digest, expert_map=self.expert_maps[unit.phase].sha256)

    def _map(self, expert_map: ExpertMap) -> Map:
        return Map.model_validate(expert_map)


def _with_defaults(spec: ResolvedSpec, decisions: Iterable[Decision]) -> dict[str, Any]:
    """The spec's data with the defaults that were taken, as one would write it who decides all by himself."""
    defaults = {each.path: each.value for each in decisions if each.why == DEFAULT}
    return without_spent(applied(spec.document.data, defaults), spec.document.autos)


def by_phase(found: Iterable[Any]) -> dict[Phase, Any]:
    """Return what was found of each phase."""
    return {each.phase: each for each in found}


def _schedule(day: DaySchedule) -> dict[str, Any]:
    """Return the plan's `schedule`."""
    return {
        "timezone": day.timezone,
        "peak_nodes": day.peak_nodes,
        "released_node_hours_per_day": day.released_node_hours,
        "released_gpu_hours_per_day": day.released_gpu_hours,
        "other_days": tuple({"days": each.days} | _states(each) for each in day.other_days),
    } | _states(day)


def _states(day: DaySchedule | OtherDays) -> dict[str, Any]:
    return {
        "steps": tuple(map(_step, day.steps)),
        "transitions": day.transitions,
        "mean_nodes": day.mean_nodes,
        "mean_nodes_taken": day.mean_nodes_taken,
    }


def _step(step: Step) -> dict[str, Any]:
    counts = {f"{phase}_units": number for phase, number in step.num_units.items()}
    known = {"at": step.at, "minutes": step.minutes, "nodes": step.num_nodes, "units": step.units}
    return known | counts | {"free_racks": step.free_racks}


def _search(found: "LayoutSearch") -> dict[str, Any]:
    """Return the plan's `search`."""
    return {
        "units": dict(found.fleet.units),
        "nodes": found.fleet.nodes,
        "usable_nodes": found.room,
        "output_tokens_per_s": found.fleet.served_per_s,
        "tokens_per_output_token": dict(found.tokens),
        "phases": {each.phase: _phase_search(each) for each in found.phases},
    }


def _phase_search(found: "PhaseSearch") -> dict[str, Any]:
    latency = "ttft_ms" if found.phase == "prefill" else "tpot_ms"
    return {
        "tried": found.tried,
        "candidates": tuple(
            {
                **each.layout.numbers,
                **vars(each.layout.speed),
                "nodes_per_unit": each.layout.nodes,
                "tokens_per_s_per_node": each.layout.tokens_per_s_per_node,
                "chosen": each.why_not is None,
                "why_not": each.why_not,
            }
            for each in found.ranked
        ),
        "lost": {
            why: {"layouts": number, "for_example": dict(each.numbers), "detail": each.detail}
            for why, (number, each) in found.lost.items()
        },
        "front": tuple(
            {**each.numbers, "tokens_per_s_per_gpu": each.tokens_per_s_per_gpu, latency: each.latency_ms}
            for each in found.front
        ),
    }

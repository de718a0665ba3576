"""The sections of a plan that say what was decided: all that `render` and `up` carry out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from planner.candidate.candidate import Candidate
from planner.facts import names
from planner.facts.catalog import ASSUMED
from planner.plan.launch import launch_documents, without_map
from planner.plan.sections import Map, PlannedUnit
from planner.problems.fix import applied
from planner.rules.schedule import without_spent
from planner.schedule.schedule import DaySchedule, OtherDays, Step
from planner.search.auto import Decided
from planner.search.decision import DEFAULT, Decision
from planner.spec.resolved import ResolvedSpec

if TYPE_CHECKING:
    from planner.search.layouts import LayoutSearch
    from planner.search.ranked import PhaseSearch

__all__ = ["decided_sections"]


def decided_sections(candidate: Candidate, choice: Decided) -> dict[str, Any]:
    """Return the sections of a plan that follow from `choice`, but its digests; `candidate` is of the chosen spec."""
    spec, maps, refusals = candidate.resolved, candidate.maps, candidate.refusals
    sources, phase_gpus = _sources(candidate), candidate.phase_gpus
    documents = launch_documents(spec, candidate.placement, maps, candidate.memory, is_runnable=not refusals)
    return {
        "name": spec.written.name,
        "spec": _with_defaults(spec, choice.decisions),
        "inputs": dict(spec.inputs),
        "runnable": not refusals,
        "why_not": tuple(problem.message for problem in refusals),
        "refusals": refusals,
        "warnings": candidate.warnings,
        "model": spec.model,
        "gpu": spec.gpu,
        "phase_gpus": phase_gpus or None,
        "sources": sources,
        "assumed": {name: source for name, source in sources.items() if source.startswith(ASSUMED)},
        "decisions": choice.decisions,
        "phases": {each.phase: each for each in candidate.layouts},
        "memory": {each.phase: each for each in candidate.memory},
        "placement": candidate.placement,
        "units": tuple(
            PlannedUnit(
                **vars(unit),
                unit_digest=documents[names.launch_file(unit.name)]["unit_digest"],
                expert_map=maps[unit.phase].sha256,
            )
            for unit in candidate.units
        ),
        "launch_documents": {file: without_map(each) for file, each in documents.items()},
        "expert_maps": {each.sha256: Map.model_validate(each) for each in maps.values()},
        "schedule": _schedule(candidate.schedule) if candidate.schedule else None,
        "search": _search(choice.search) if choice.search else None,
    }


def _sources(candidate: Candidate) -> dict[str, str]:
    """Return the source of each number that no spec gives."""
    spec = candidate.resolved
    figures = {f"cluster.gpu.{figure}": source for figure, source in spec.gpu.sources.items()}
    for phase, gpu in candidate.phase_gpus.items():
        figures |= {f"{phase}.gpu.{figure}": source for figure, source in gpu.sources.items()}
    parts = {f"{each.phase}.{part}": source for each in candidate.memory for part, source in each.sources.items()}
    return {"model": spec.model.source} | figures | parts


def _with_defaults(spec: ResolvedSpec, decisions: Iterable[Decision]) -> dict[str, Any]:
    """The spec's data with the defaults that were taken, as one would write it who decides all by himself."""
    defaults = {each.path: each.value for each in decisions if each.why == DEFAULT}
    return without_spent(applied(spec.document.data, defaults), spec.document.autos)


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

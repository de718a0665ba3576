"""Build the plan sections that record decisions. `render` and `up` carry out these sections and nothing else."""

from collections.abc import Iterable
from typing import Any

from planner.candidate.candidate import Candidate
from planner.facts import names
from planner.facts.catalog import ASSUMED
from planner.plan.launch import launch_documents, strip_map
from planner.plan.sections import Map, Memory, PlannedUnit
from planner.problems.fix import apply_change
from planner.rules.schedule import reset_spent_options
from planner.search.auto import Choice
from planner.search.decision import DEFAULT, Decision
from planner.spec.resolved import ResolvedSpec


def decided_sections(candidate: Candidate, choice: Choice) -> dict[str, Any]:
    """Return every decided section of the plan except its digests. `candidate` must hold the chosen spec."""
    spec, maps, refusals = candidate.resolved, candidate.maps, candidate.refusals
    sources, phase_gpus = _sources(candidate), candidate.phase_gpus
    memory = {each.phase: Memory.model_validate(each) for each in candidate.memory}
    documents = launch_documents(spec, candidate.placement, maps, memory, is_runnable=not refusals)
    return {
        "name": spec.written.name,
        "spec": _fill_defaults(spec, choice.decisions),
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
        "memory": memory,
        "placement": candidate.placement,
        "units": tuple(
            PlannedUnit(
                **vars(unit),
                unit_digest=documents[names.launch_file(unit.name)]["unit_digest"],
                expert_map=maps[unit.phase].sha256,
            )
            for unit in candidate.units
        ),
        "launch_documents": {file: strip_map(each) for file, each in documents.items()},
        "expert_maps": {each.sha256: Map.model_validate(each) for each in maps.values()},
        "schedule": candidate.schedule,
        "search": choice.search,
    }


def _sources(candidate: Candidate) -> dict[str, str]:
    """Return where each number comes from that the spec does not give: path of the number -> source."""
    spec = candidate.resolved
    figures = {f"cluster.gpu.{figure}": source for figure, source in spec.gpu.sources.items()}
    for phase, gpu in candidate.phase_gpus.items():
        figures |= {f"{phase}.gpu.{figure}": source for figure, source in gpu.sources.items()}
    parts = {f"{each.phase}.{part}": source for each in candidate.memory for part, source in each.sources.items()}
    return {"model": spec.model.source} | figures | parts


def _fill_defaults(spec: ResolvedSpec, decisions: Iterable[Decision]) -> dict[str, Any]:
    """Return the spec's data with every default written out; `auto` is decided there already."""
    defaults = {each.path: each.value for each in decisions if each.why == DEFAULT}
    return reset_spent_options(apply_change(spec.document.data, defaults), spec.document.autos)

"""Build the plan sections that record decisions. `render` and `up` carry out these sections and nothing else."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from planner.candidate.candidate import Candidate
from planner.facts.catalog import ASSUMED
from planner.facts.quantisation import KV_BYTES
from planner.facts.terms import Phase
from planner.layout.memory import STAGED_EXPERTS, staging_bytes
from planner.plan.launch import kv_dtype_of
from planner.plan.plan import PLAN_VERSION
from planner.plan.rebuild import KeptFacts, SharedFacts, rebuilt_sections
from planner.plan.sections import LiveMap, Map, Memory, ModelShape, Reads
from planner.problems.fix import apply_change
from planner.rules.schedule import reset_spent_options
from planner.search.auto import Choice
from planner.spec.decision import DEFAULT, Decision
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec


def decided_sections(candidate: Candidate, choice: Choice) -> dict[str, Any]:
    """Return every decided section of the plan except its digests. `candidate` must hold the chosen spec."""
    spec, refusals = candidate.resolved, candidate.refusals
    sources, phase_gpus = _sources(candidate), candidate.phase_gpus
    running = rebuilt_sections(_kept_facts(candidate, _settle_data(spec, choice.decisions)))
    whys = {unit.name: unit.why for unit in candidate.units}
    return running | {
        "units": tuple(replace(unit, why=whys[unit.name]) for unit in running["units"]),
        "why_not": tuple(problem.message for problem in refusals),
        "refusals": refusals,
        "warnings": candidate.warnings,
        "gpu": spec.gpu,
        "phase_gpus": phase_gpus or None,
        "sources": sources,
        "assumed": {name: source for name, source in sources.items() if source.startswith(ASSUMED)},
        "decisions": choice.decisions,
        "placement": candidate.placement,
        "expert_maps": {each.sha256: Map.model_validate(each) for each in candidate.maps.values()},
        "search": choice.search,
    }


def _kept_facts(candidate: Candidate, written: dict[str, Any]) -> KeptFacts:
    """Return the facts from which all else in the plan that runs is derived. `written` is the spec as planned."""
    spec, model = candidate.resolved, candidate.resolved.model
    memory = {each.phase: Memory.model_validate(each) for each in candidate.memory}
    shared = SharedFacts.model_construct(
        version=PLAN_VERSION,
        spec=written,
        inputs=dict(spec.inputs),
        model=ModelShape.model_validate(model),
        memory=memory,
        reads={
            phase: Reads(all_bytes=all_bytes, slot_bytes=slot_bytes)
            for phase, (all_bytes, slot_bytes) in candidate.loaded_bytes.items()
            if phase not in memory
        }
        or None,
        shared_experts=model.num_shared_experts,
        kv_bytes_per_token=spec.loaded_model.kv_bytes_per_token(KV_BYTES[kv_dtype_of(spec.written)]),
        brings_code=model.brings_code or None,
        quant_method=model.quantisation.other_method,
        live_maps=_live_maps(candidate) or None,
    )
    return KeptFacts(
        shared,
        Spec.model_validate(written),
        nodes={phase: [unit.nodes for unit in candidate.units if unit.phase == phase] for phase in spec.phases},
        maps={phase: each.physical_to_logical for phase, each in candidate.maps.items()},
        is_runnable=not candidate.refusals,
    )


def _live_maps(candidate: Candidate) -> dict[Phase, LiveMap]:
    """Return the rules for new maps, for phases whose units may change their maps while they serve.

    The result is empty if the spec does not want such changes.
    """
    if candidate.spec.expert_load.live is None:
        return {}
    staged = {each.phase: (each, staging_bytes(candidate.resolved, each)) for each in candidate.layouts}
    return {
        phase: LiveMap(
            expert_bytes=num_bytes // STAGED_EXPERTS,
            device=candidate.resolved.gpu_of(phase).device,
            **candidate.map_rules(layout),
        )
        for phase, (layout, num_bytes) in staged.items()
        if num_bytes is not None
    }


def _sources(candidate: Candidate) -> dict[str, str]:
    """Return path -> source of each number that the spec does not give."""
    spec = candidate.resolved
    figures = {f"cluster.gpu.{figure}": source for figure, source in spec.gpu.sources.items()}
    for phase, gpu in candidate.phase_gpus.items():
        figures |= {f"{phase}.gpu.{figure}": source for figure, source in gpu.sources.items()}
    parts = {f"{each.phase}.{part}": source for each in candidate.memory for part, source in each.sources.items()}
    return {"model": spec.model.source} | figures | parts


def _settle_data(spec: ResolvedSpec, decisions: Iterable[Decision]) -> dict[str, Any]:
    """Return the spec's data with each default in `decisions` written out.

    Options that served only to decide an `auto` go back to their defaults.
    """
    defaults = {each.path: each.value for each in decisions if each.why == DEFAULT}
    return reset_spent_options(apply_change(spec.document.data, defaults), spec.document.autos)

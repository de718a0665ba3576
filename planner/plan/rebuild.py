"""Build what a plan deploys from the facts in it that cannot be derived from others.

    kept      the spec as planned, its files' digests, the model, one GPU's memory, each unit's nodes, the maps
    built     the layout of phases, units with their digests, launch documents, the schedule

A compiled plan is built from the facts that a candidate decided (`decided.py`). A rendered folder holds only the kept
facts (`spread.py`). A PLAN.json holds both, and its built part must equal what its kept part gives (`load.py`). Digests
alone do not ensure this: whoever edits a plan can recompute them, and then ranks would run something else than a
reviewer reads.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from planner.facts import names
from planner.facts.checkpoint_manifest import MANIFEST
from planner.facts.digest import digest_of
from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.engines import OURS
from planner.facts.part import Digest, Maybe, Part
from planner.facts.quantities import counted, first_of
from planner.facts.terms import Phase
from planner.layout.dispatch import split_of
from planner.layout.layout import PhaseLayout, layout_of
from planner.layout.nodes import nodes_of
from planner.layout.unit import Unit
from planner.plan.launch import LaunchDocument, LaunchInputs, launch_documents, strip_map
from planner.plan.plan import PLAN_VERSION, Plan, seal_plan
from planner.plan.sections import LiveMap, Map, Memory, ModelShape, PlannedUnit, Reads, weights_read
from planner.plan.shapes import WRITE_ONE
from planner.problems.finding import Finding
from planner.rules.check import mistakes_in
from planner.schedule.schedule import plan_schedule
from planner.schedule.starts import start_times
from planner.spec.declared import undecided_in
from planner.spec.schema import Spec
from planner.spec.undecided import AUTO

Rows = tuple[tuple[int, ...], ...]  # a map: [num_moe_layers][num_physical_experts]
Reference = tuple[str, object, str, bool]  # path, value, source to agree with, whether it agrees


class SharedFacts(Part):
    """The facts of a plan that all units share."""

    version: Literal[3]
    spec: dict[str, Any]  # with defaults, and with numbers for `auto`
    inputs: dict[str, Digest]  # digests of the checkpoint's files, from which those of launch files follow
    model: ModelShape
    memory: dict[Phase, Memory]  # empty if ranks share host memory
    reads: Maybe[dict[Phase, Reads]] = None  # of phases without `memory`
    shared_experts: Annotated[int, Field(ge=0)]
    kv_bytes_per_token: Annotated[int, Field(ge=1)]
    brings_code: Maybe[bool] = None
    quant_method: Maybe[str] = None
    live_maps: Maybe[dict[Phase, LiveMap]] = None  # of phases whose units change their maps by themselves


@dataclass(frozen=True)
class KeptFacts:
    """The facts of a plan that cannot be derived from other facts."""

    shared: SharedFacts
    spec: Spec
    nodes: Mapping[Phase, Sequence[tuple[str, ...]]]  # of each unit
    maps: Mapping[Phase, Rows]
    is_runnable: bool

    @cached_property
    def layouts(self) -> dict[Phase, PhaseLayout]:
        """Return the layout of each phase."""
        sizes = self.shared.model.num_routed_experts, self.shared.shared_experts
        return {phase: layout_of(self.spec, phase, *sizes) for phase in self.spec.phases}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Return the units, phase by phase."""
        return tuple(
            Unit(
                names.unit_name(self.spec.name, phase, index),
                phase,
                index,
                nodes,
                self.layouts[phase].ep_size,
                "where the plan has it",
            )
            for phase, of_units in self.nodes.items()
            for index, nodes in enumerate(of_units)
        )


def shared_facts(plan: Plan) -> SharedFacts:
    """Return what all units of a valid plan have in common: spec, model, memory, bytes of KV per token, and more."""
    unit = plan.launch_documents[names.launch_file(plan.units[0].name)]
    return SharedFacts.model_construct(
        version=PLAN_VERSION,
        spec=plan.written,
        inputs={name: plan.inputs[name] for name in _checkpoint_files(plan.spec) if name in plan.inputs},
        model=plan.model,
        memory=plan.memory,
        reads=plan.reads,
        shared_experts=next(iter(plan.phases.values())).shared_per_gpu,
        kv_bytes_per_token=unit["kv_cache"]["bytes_per_token"],
        brings_code=unit.get("brings_code"),
        quant_method=unit.get("quant_method"),
        live_maps=plan.live_maps,
    )


def spec_mistakes(written: Mapping[str, Any], spec: Spec) -> Iterator[Finding]:
    """Yield each rule that a plan's spec breaks, and each field that is still `auto`.

    A plan's spec is checked like any other, since its names become names of files and objects.
    """
    for mistake in mistakes_in(written):
        fix = "change the spec and plan it again"
        yield Finding(f"spec.{mistake.path}", mistake.value, mistake.rule, mistake.reason, fix)
    of_plan = "the plan, which has decided it"
    yield from disagreements((f"spec.{path}", AUTO, of_plan, False) for path in undecided_in(spec))


def contradictions(kept: KeptFacts) -> Iterator[Finding]:
    """Yield a finding for each kept fact that contradicts another one. The spec must have no mistakes."""
    if kept.is_runnable:
        yield from disagreements(_check_engine(kept.spec, kept.shared.model.model_type, kept.shared.memory.keys()))
    yield from disagreements(_check_phases(kept))
    yield from disagreements(_check_nodes(kept))


def disagreements(references: Iterable[Reference]) -> Iterator[Finding]:
    """Yield a finding for each reference that disagrees with its source."""
    for path, value, source, agrees in references:
        if not agrees:
            reason = "the parts of this plan contradict each other"
            yield Finding(path, value, f"S908 must agree with {source}", reason, WRITE_ONE)


def rebuild(kept: KeptFacts) -> Plan:
    """Return the plan that `kept` describes, without reasons and estimates. The facts must agree with each other."""
    unknown = {
        "placement": {"method": "previous", "why": "", "objectives": (), "unusable_nodes": {}, "spares": ()},
        **dict.fromkeys(("why_not", "refusals", "warnings", "decisions"), ()),
        **{key: {} for key in ("gpu", "sources", "assumed")},
    }
    maps = {digest_of(rows): _rebuild_map(kept, phase) for phase, rows in kept.maps.items()}
    return seal_plan(rebuilt_sections(kept) | {"expert_maps": maps} | unknown)


def rebuilt_sections(kept: KeptFacts) -> dict[str, Any]:
    """Return the sections that decide what runs, except `expert_maps`: the kept facts, and what follows from them."""
    digests = {phase: digest_of(rows) for phase, rows in kept.maps.items()}
    documents = _launch_documents(kept, digests)
    times = start_times(kept.spec, list(kept.layouts.values()), weights_read(kept.shared.memory, kept.shared.reads))
    return {
        "name": kept.spec.name,
        "spec": kept.shared.spec,
        "inputs": kept.shared.inputs,
        "model": kept.shared.model,
        "memory": kept.shared.memory,
        "reads": kept.shared.reads,
        "live_maps": kept.shared.live_maps,
        "runnable": kept.is_runnable,
        "phases": kept.layouts,
        "units": tuple(
            PlannedUnit(
                **vars(unit),
                unit_digest=documents[names.launch_file(unit.name)]["unit_digest"],
                expert_map=digests[unit.phase],
            )
            for unit in kept.units
        ),
        "launch_documents": {file: strip_map(each) for file, each in documents.items()},
        "schedule": plan_schedule(kept.spec, kept.units, times),
    }


def _checkpoint_files(spec: Spec) -> tuple[str, ...]:
    """Return the names of the checkpoint's config and manifest; empty if the spec does not name a config file."""
    if isinstance(spec.model, str) or spec.model.config is None:
        return ()
    return spec.model.config, str(Path(spec.model.config).with_name(MANIFEST))


def _launch_documents(kept: KeptFacts, digests: Mapping[Phase, str]) -> dict[str, LaunchDocument]:
    inputs = LaunchInputs(
        checkpoint=_checkpoint(kept.spec, kept.shared.inputs),
        kv_bytes_per_token=kept.shared.kv_bytes_per_token,
        memory=kept.shared.memory,
        expert_maps={
            phase: {
                "sha256": digests[phase],
                "num_logical_experts": kept.shared.model.num_routed_experts,
                "physical_to_logical": rows,
            }
            for phase, rows in kept.maps.items()
        },
        first_moe_layer=kept.shared.model.num_dense_layers,
        model_type=kept.shared.model.model_type,
        brings_code=bool(kept.shared.brings_code),
        other_method=kept.shared.quant_method,
        is_runnable=kept.is_runnable,
    )
    return launch_documents(kept.spec, kept.units, inputs)


def _checkpoint(spec: Spec, inputs: Mapping[str, str]) -> LaunchDocument | None:
    """Return the checkpoint with its digests; None if the spec has no checkpoint.

    The spec gives the digests, or they are those of files that the spec names.
    """
    if spec.checkpoint is None:
        return None
    keys, files = ("config_digest", "weights_digest"), _checkpoint_files(spec)
    digests = map(inputs.get, files) if files else (getattr(spec.model, key, None) for key in keys)
    return {"uri": spec.checkpoint, **dict(zip(keys, digests, strict=True))}


def _rebuild_map(kept: KeptFacts, phase: Phase) -> Map:
    """Return the expert map of `phase` without its balance, which follows from loads that a plan does not keep."""
    split = split_of(kept.spec, kept.layouts[phase])
    return Map(physical_to_logical=kept.maps[phase], max_over_mean=(), bound=(), binding=(), split=split)


def _check_engine(spec: Spec, model_type: str, memory: Collection[Phase]) -> Iterator[Reference]:
    """Yield references between the plan and the values from which another engine's containers are made.

    `memory` has the phases whose memory is known. Nothing is yielded for the bundled runtime.
    """
    if spec.engine_name == OURS:
        return
    known = ENGINE_MODELS[spec.engine_name].get(spec.engine_version or "", {})
    yield "memory", sorted(memory), "phases", set(memory) == set(spec.phases)
    yield "model.model_type", model_type, f"the models that {spec.engine_name} runs", model_type in known
    yield "spec.model.checkpoint", None, "runnable", spec.checkpoint is not None


def _check_phases(kept: KeptFacts) -> Iterator[Reference]:
    weights = weights_read(kept.shared.memory, kept.shared.reads)
    yield "memory", sorted(weights), "phases", weights.keys() == kept.layouts.keys()
    counts = Counter(unit.phase for unit in kept.units)
    for phase, layout in kept.layouts.items():
        source = f"spec, which has {counted(layout.num_units, f'{phase} unit')}"
        yield "units", counts[phase], source, counts[phase] == layout.num_units
    fitting = {phase for phase, rows in kept.maps.items() if _map_fits(rows, kept.layouts[phase])}
    for number, unit in enumerate(kept.units):
        yield f"units.{number}.expert_map", None, f"phases.{unit.phase}", unit.phase in fitting


def _check_nodes(kept: KeptFacts) -> Iterator[Reference]:
    """Yield references that check each unit's nodes.

    A unit must have enough nodes of the cluster, with its GPU, and share none with another unit.
    """
    nodes = nodes_of(kept.spec.cluster, kept.spec.gpu_names, kept.spec.kubernetes.tolerations)
    gpus = {node.name: node.gpu for node in nodes if node.unusable is None}
    taken: dict[str, str] = {}  # node -> the first unit that has it
    for number, unit in enumerate(kept.units):
        path, layout = f"units.{number}.nodes", kept.layouts[unit.phase]
        size = layout.nodes_per_unit
        yield path, unit.nodes, f"phases.{unit.phase}.nodes_per_unit ({size})", len(unit.nodes) == size
        are_known = all(gpus.get(node) == layout.gpu for node in unit.nodes)
        yield path, unit.nodes, "spec.cluster.nodes", are_known and len(set(unit.nodes)) == len(unit.nodes)
        shared = [node for node in unit.nodes if node in taken]
        other = f"{taken[shared[0]]}, which also has {first_of(shared)}" if shared else ""
        yield path, unit.nodes, other, not shared
        taken |= dict.fromkeys(unit.nodes, unit.name)


def _map_fits(rows: Rows, layout: PhaseLayout) -> bool:
    """Return whether every layer of a map has the layout's number of slots and exactly the layout's experts."""
    if not rows or len(rows[0]) < layout.num_logical_experts:
        return False
    experts = set(range(layout.num_logical_experts))
    return all(set(row) == experts and len(row) == layout.num_physical_experts for row in rows)

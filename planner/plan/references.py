"""Check the cross-references of a loaded plan: units, maps, nodes, launch documents, schedule and spec.

Each check runs only after the checks before it passed, so lookups cannot fail.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from planner.facts import names
from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.engines import OURS
from planner.facts.quantities import counted, first_of
from planner.facts.terms import Phase
from planner.layout.layout import layout_of
from planner.layout.nodes import nodes_of
from planner.plan.plan import Plan
from planner.plan.sections import OtherDays, PlannedUnit, Schedule, Step
from planner.plan.shapes import WRITE_ONE
from planner.problems.finding import Finding
from planner.rules.check import mistakes_in
from planner.spec.declared import undecided_in
from planner.spec.schema import Spec
from planner.spec.undecided import AUTO

__all__ = ["find_contradictions", "find_engine_contradictions", "spec_mistakes"]

_Reference = tuple[str, object, str, bool]  # path, value, source to agree with, whether it agrees


def spec_mistakes(written: Mapping[str, Any], spec: Spec) -> Iterator[Finding]:
    """Yield the rules that a plan's spec breaks, and what it leaves open. Names become files and objects, as ever."""
    for mistake in mistakes_in(written):
        fix = "change the spec and plan it again"
        yield Finding(f"spec.{mistake.path}", mistake.value, mistake.rule, mistake.reason, fix)
    yield from _findings((f"spec.{path}", AUTO, "the plan, which has decided it", False) for path in undecided_in(spec))


def find_contradictions(plan: Plan, spec: Spec) -> Iterator[Finding]:
    """Yield a finding for each reference to a missing or mismatched part."""
    yield from _findings(_check_plan_references(plan, spec))
    yield from _findings(_check_phases(plan, spec))
    if plan.runnable:
        yield from find_engine_contradictions(spec, plan.model.model_type, plan.memory.keys())
    yield from _findings(_check_unit_references(plan, spec))
    yield from _findings(_check_schedule(plan, spec))


def find_engine_contradictions(spec: Spec, model_type: str, memory: Collection[Phase]) -> Iterator[Finding]:
    """Yield a finding for each input that another engine's containers lack; `memory` has phases of known memory."""
    if spec.engine_name == OURS:
        return
    known = ENGINE_MODELS[spec.engine_name].get(spec.engine_version or "", {})
    yield from _findings(
        [
            ("memory", sorted(memory), "phases", set(memory) == set(spec.phases)),
            ("model.model_type", model_type, f"the models that {spec.engine_name} runs", model_type in known),
            ("spec.model.checkpoint", None, "runnable", spec.checkpoint is not None),
        ]
    )


def _findings(references: Iterable[_Reference]) -> Iterator[Finding]:
    for path, value, source, agrees in references:
        if not agrees:
            reason = "the parts of this plan contradict each other"
            yield Finding(path, value, f"S908 must agree with {source}", reason, WRITE_ONE)


def _check_plan_references(plan: Plan, spec: Spec) -> Iterator[_Reference]:
    unit_names = [unit.name for unit in plan.units]
    files = {*map(names.launch_file, unit_names), names.GATEWAY_LAUNCH_FILE}
    gateway = plan.launch_documents.get(names.GATEWAY_LAUNCH_FILE, {})
    yield "name", plan.name, "spec.name", plan.name == spec.name
    yield "runnable", plan.runnable, "refusals", plan.runnable is not bool(plan.refusals)
    why_not = tuple(problem.message for problem in plan.refusals)
    yield "why_not", plan.why_not, "refusals", plan.why_not == why_not
    yield "launch_documents", sorted(plan.launch_documents), "units", plan.launch_documents.keys() == files
    yield (
        f"launch_documents.{names.GATEWAY_LAUNCH_FILE}",
        None,
        "its kind",
        gateway.get("kind") == "gateway",
    )
    for place, step in _steps(plan.schedule):
        yield f"{place}.units", step.units, "units", set(step.units) <= set(unit_names)


def _check_phases(plan: Plan, spec: Spec) -> Iterator[_Reference]:
    """Compare each phase's units and shape with its section of the spec."""
    counts = Counter(unit.phase for unit in plan.units)
    yield "phases", sorted(plan.phases), "spec", plan.phases.keys() == set(spec.phases)
    yield "memory", sorted(plan.memory), "phases", plan.memory.keys() <= plan.phases.keys()
    for phase, shape in plan.phases.items():
        layout = layout_of(spec, phase, shape.num_logical_experts, shape.shared_per_gpu)
        source = f"spec, which has {counted(layout.num_units, f'{phase} unit')}"
        yield "units", counts[phase], source, counts[phase] == layout.num_units
        for key, value in shape:
            expected = getattr(layout, key)
            yield f"phases.{phase}.{key}", value, f"spec.{phase} ({expected})", value == expected


def _check_unit_references(plan: Plan, spec: Spec) -> Iterator[_Reference]:
    nodes = nodes_of(spec.cluster, spec.gpu_names, spec.kubernetes.tolerations)
    gpus = {node.name: node.gpu for node in nodes if node.unusable is None}
    taken: dict[str, str] = {}  # node -> the first unit that has it
    counts: Counter[Phase] = Counter()
    fitting = {each for each in {(unit.phase, unit.expert_map) for unit in plan.units} if _map_fits_phase(plan, *each)}
    for number, unit in enumerate(plan.units):
        path, index = f"units.{number}", counts[unit.phase]
        counts[unit.phase] += 1
        name = names.unit_name(spec.name, unit.phase, index)
        yield f"{path}.phase", unit.phase, "spec", unit.phase in spec.phases
        shape = plan.phases[unit.phase]
        yield f"{path}.name", unit.name, f"its phase and place ({name})", unit.name == name
        yield f"{path}.index", unit.index, f"its place ({index})", unit.index == index
        are_enough = len(unit.nodes) == shape.nodes_per_unit
        yield f"{path}.nodes", unit.nodes, f"phases.{unit.phase}.nodes_per_unit ({shape.nodes_per_unit})", are_enough
        are_known = all(gpus.get(node) == shape.gpu for node in unit.nodes)
        yield f"{path}.nodes", unit.nodes, "spec.cluster.nodes", are_known and len(set(unit.nodes)) == len(unit.nodes)
        shared = [node for node in unit.nodes if node in taken]
        other = f"{taken[shared[0]]}, which also has {first_of(shared)}" if shared else ""
        yield f"{path}.nodes", unit.nodes, other, not shared
        taken |= dict.fromkeys(unit.nodes, unit.name)
        yield f"{path}.ranks", unit.ranks, f"spec.{unit.phase}.ep_size", unit.ranks == shape.ep_size
        yield f"{path}.expert_map", unit.expert_map, "expert_maps", unit.expert_map in plan.expert_maps
        yield f"{path}.expert_map", unit.expert_map, f"phases.{unit.phase}", (unit.phase, unit.expert_map) in fitting
        yield from _check_launch_document(plan, unit, path)


def _check_schedule(plan: Plan, spec: Spec) -> Iterator[_Reference]:
    """Compare the plan's schedule with the timetable that the spec's schedule gives."""
    timetable = plan.timetable
    stored = [(step.at, step.units) for step in plan.schedule.steps] if plan.schedule else []
    planned = [(step.at, step.units) for step in timetable.steps] if timetable else []
    yield "schedule.steps", None, "spec.schedule", stored == planned
    others = [(each.days, [(step.at, step.units) for step in each.steps]) for each in _other_days(plan.schedule)]
    of_spec = [
        (each.days, [(step.at, step.units) for step in each.steps])
        for each in (timetable.other_days if timetable else ())
    ]
    yield "schedule.other_days", None, "spec.schedule", others == of_spec


def _other_days(schedule: Schedule | None) -> Sequence[OtherDays]:
    return schedule.other_days if schedule else ()


def _steps(schedule: Schedule | None) -> Iterator[tuple[str, Step]]:
    """Yield each step of each day with its path."""
    for index, step in enumerate(schedule.steps if schedule else ()):
        yield f"schedule.steps.{index}", step
    for number, other in enumerate(_other_days(schedule)):
        for index, step in enumerate(other.steps):
            yield f"schedule.other_days.{number}.steps.{index}", step


def _check_launch_document(plan: Plan, unit: PlannedUnit, path: str) -> Iterator[_Reference]:
    """Compare a unit with its launch document. `verify_launch.py` compares the document's other fields."""
    source = f"launch_documents.{names.launch_file(unit.name)}"
    document = plan.launch_documents[names.launch_file(unit.name)]
    yield f"{path}.name", unit.name, source, document["kind"] != "gateway"
    stored = (document.get("expert_map") or {}).get("sha256", unit.expert_map)  # some engines read no map
    yield f"{path}.unit_digest", unit.unit_digest, source, unit.unit_digest == document["unit_digest"]
    yield f"{path}.expert_map", unit.expert_map, f"{source}.expert_map", unit.expert_map == stored


def _map_fits_phase(plan: Plan, name: Phase, sha256: str) -> bool:
    """Return whether every layer of a map has the phase's slots and contains all its experts."""
    rows = plan.expert_maps[sha256].physical_to_logical if sha256 in plan.expert_maps else ()
    phase = plan.phases.get(name)
    if phase is None or not rows or len(rows[0]) < phase.num_logical_experts:
        return False
    experts = set(range(phase.num_logical_experts))
    return all(set(row) == experts and len(row) == phase.num_physical_experts for row in rows)

"""Whether the parts of a plan that refer to each other agree: units, maps, nodes, launch documents, the day, the spec.

Each is looked at only when those before it agree, so that a part which is looked up is there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from planner.facts import names
from planner.facts.terms import Phase
from planner.layout.nodes import nodes_of
from planner.plan.plan import Plan
from planner.plan.sections import OtherDays, PlannedUnit, Schedule, Step
from planner.problems.finding import Finding
from planner.spec.schedule import is_undecided_day
from planner.spec.schema import Spec

__all__ = ["WRITE_ONE", "disagreeing"]

WRITE_ONE = "write one with tidemill plan -o"

_Reference = tuple[str, object, str, bool]  # path, what stands there, what it must agree with, whether it does


def disagreeing(plan: Plan, spec: Spec) -> Iterator[Finding]:
    """Yield the parts that refer to what is not there, or is another's."""
    for path, value, source, agrees in chain(_of_plan(plan, spec), _of_units(plan, spec), _of_day(plan, spec)):
        if not agrees:
            reason = "the parts of this plan contradict each other"
            yield Finding(path, value, f"S908 must agree with {source}", reason, WRITE_ONE)


def _of_plan(plan: Plan, spec: Spec) -> Iterator[_Reference]:
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


def _of_units(plan: Plan, spec: Spec) -> Iterator[_Reference]:
    free = {node.name for node in nodes_of(spec.cluster)}.difference(spec.cluster.spares)
    counts: Counter[Phase] = Counter()
    fitting = {each for each in {(unit.phase, unit.expert_map) for unit in plan.units} if _holds(plan, *each)}
    for number, unit in enumerate(plan.units):
        path, index = f"units.{number}", counts[unit.phase]
        counts[unit.phase] += 1
        name = names.unit_name(spec.name, unit.phase, index)
        yield f"{path}.phase", unit.phase, "spec", unit.phase in spec.phases
        yield f"{path}.name", unit.name, f"its phase and place ({name})", unit.name == name
        yield f"{path}.index", unit.index, f"its place ({index})", unit.index == index
        are_free = bool(unit.nodes) and free.issuperset(unit.nodes) and len(set(unit.nodes)) == len(unit.nodes)
        yield f"{path}.nodes", unit.nodes, "spec.cluster.nodes and the other units", are_free
        free.difference_update(unit.nodes)
        yield f"{path}.ranks", unit.ranks, f"spec.{unit.phase}.ep_size", unit.ranks == spec.phase(unit.phase).ep_size
        yield f"{path}.expert_map", unit.expert_map, "expert_maps", unit.expert_map in plan.expert_maps
        yield f"{path}.expert_map", unit.expert_map, f"phases.{unit.phase}", (unit.phase, unit.expert_map) in fitting
        yield from _of_document(plan, unit, path)


def _of_day(plan: Plan, spec: Spec) -> Iterator[_Reference]:
    """What units do over the day is what the spec's schedule says."""
    yield "spec.schedule", None, "schedule", spec.schedule is None or not is_undecided_day(spec.schedule)
    timetable = plan.timetable
    told = [(step.at, step.units) for step in plan.schedule.steps] if plan.schedule else []
    planned = [(step.at, step.units) for step in timetable.steps] if timetable else []
    yield "schedule.steps", None, "spec.schedule", told == planned
    others = [(each.days, [(step.at, step.units) for step in each.steps]) for each in _other_days(plan.schedule)]
    of_spec = [
        (each.days, [(step.at, step.units) for step in each.steps])
        for each in (timetable.other_days if timetable else ())
    ]
    yield "schedule.other_days", None, "spec.schedule", others == of_spec


def _other_days(schedule: Schedule | None) -> Sequence[OtherDays]:
    return schedule.other_days if schedule else ()


def _steps(schedule: Schedule | None) -> Iterator[tuple[str, Step]]:
    """Yield every state of every day, and where it stands."""
    for index, step in enumerate(schedule.steps if schedule else ()):
        yield f"schedule.steps.{index}", step
    for number, other in enumerate(_other_days(schedule)):
        for index, step in enumerate(other.steps):
            yield f"schedule.other_days.{number}.steps.{index}", step


def _of_document(plan: Plan, unit: PlannedUnit, path: str) -> Iterator[_Reference]:
    """A unit and its launch document; what else that tells, `told.py` compares."""
    source = f"launch_documents.{names.launch_file(unit.name)}"
    document = plan.launch_documents[names.launch_file(unit.name)]
    yield f"{path}.name", unit.name, source, document["kind"] != "gateway"
    told = (document.get("expert_map") or {}).get("sha256", unit.expert_map)  # some engines read no map
    yield f"{path}.unit_digest", unit.unit_digest, source, unit.unit_digest == document["unit_digest"]
    yield f"{path}.expert_map", unit.expert_map, f"{source}.expert_map", unit.expert_map == told


def _holds(plan: Plan, of_phase: Phase, sha256: str) -> bool:
    """Whether each layer of a map has the phase's slots, and each of its experts in one at least."""
    rows = plan.expert_maps[sha256].physical_to_logical if sha256 in plan.expert_maps else ()
    phase = plan.phases.get(of_phase)
    if phase is None or not rows or len(rows[0]) < phase.num_logical_experts:
        return False
    experts = set(range(phase.num_logical_experts))
    return all(set(row) == experts and len(row) == phase.num_physical_experts for row in rows)

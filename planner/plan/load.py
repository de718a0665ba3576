"""Load a plan from its JSON, and validate all of it before anything is used.

A file that was edited by hand, truncated, or made up must not reach a cluster. The checks, in order:
    version         ours, since another version's keys may mean something else
    shapes          of every key
    digests         recomputed: of the plan and each expert map
    the spec        by the rules that need no file
    facts           the nodes and maps of units are those that the spec allows
    the document    its digest
    what runs       rebuilt from the facts and compared
    decisions       have the spec's values
    the report      is there, so that readers compute the plan's figures anew
    extra keys      writing the plan again gives the same JSON

Loading plans nothing: a loaded plan is carried out as written. `spec_digest` is not recomputed. It covers defaults, so
each new field of the spec would make all earlier plans invalid. The document's digest covers the spec too.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from planner.facts import names
from planner.facts.digest import digest_of
from planner.facts.part import Maybe, Part
from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.plan.plan import PLAN_VERSION, Plan, document_digest, plan_digest
from planner.plan.rebuild import (
    KeptFacts,
    Reference,
    contradictions,
    disagreements,
    rebuilt_sections,
    shared_facts,
    spec_mistakes,
)
from planner.plan.sections import LaunchDocuments, PhaseShape, PlannedUnit, Schedule
from planner.plan.shapes import NO_PLAN, parse_object, plan_error, read_content, validate_part, validate_spec
from planner.plan.spread import join_plan
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import value_at
from planner.spec.schema import Spec

PLAN_AGAIN = "change the spec and plan it again"


class _RebuiltSections(Part):
    """The sections of a plan that can be built again from its other sections."""

    name: str
    phases: dict[Phase, PhaseShape]
    launch_documents: LaunchDocuments
    units: tuple[PlannedUnit, ...]
    schedule: Maybe[Schedule] = None


def read_plan(path: Path) -> Plan:
    """Return the plan in the file or rendered folder at `path`. Raises CallError if it has no valid plan."""
    if path.is_dir():
        return join_plan(path)
    return load_plan(read_content(path), path)


def load_plan(content: bytes, path: Path) -> Plan:
    """Return the plan in `content`, read from `path`. Raises CallError for the first problem."""
    data = parse_object(content, path, PLAN_VERSION)
    plan = validate_part(Plan, content, path)
    spec = validate_spec(plan.written, path)
    of_parts = chain(_check_digests(plan, data), spec_mistakes(plan.written, spec), _check_facts(plan, spec))
    of_decisions = disagreements(_check_decisions(plan))
    of_whole = chain(_check_document_digest(plan, data), _check_rebuilt(plan, spec, data), of_decisions)
    for finding in chain(of_parts, of_whole):
        raise CallError([finding.at(str(path))])
    if plan.report is None:  # a deployed part alone, whose figures nobody computes anew
        raise plan_error(path, NO_PLAN, "it has no report")
    for key, _ in _differences(data, plan.as_json()):
        raise plan_error(path, NO_PLAN, f"{key} is not as this version of tidemill writes it")
    return plan


def _check_digests(plan: Plan, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each digest that does not match its content."""
    yield from _compare_digests("digest", plan.digest, plan_digest(data, plan.spec))
    for sha256, each in plan.expert_maps.items():
        yield from _compare_digests(f"expert_maps.{sha256}", sha256, digest_of(each.physical_to_logical))


def _check_document_digest(plan: Plan, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if the document's digest does not match: content that only reviewers read was edited."""
    yield from _compare_digests("document_digest", plan.document_digest, document_digest(data))


def _compare_digests(path: str, written: str, computed: str) -> Iterator[Finding]:
    if written != computed:
        rule = f"S909 must match the digest of the content ({computed[:19]}...)"
        yield Finding(path, written, rule, "the plan was edited after tidemill plan wrote it", PLAN_AGAIN)


def _check_facts(plan: Plan, spec: Spec) -> Iterator[Finding]:
    """Yield a finding for each fact in the plan that contradicts another one."""
    yield from disagreements(_check_references(plan, spec))
    yield from contradictions(_kept_facts(plan, spec))


def _check_references(plan: Plan, spec: Spec) -> Iterator[Reference]:
    """Yield each reference between sections of the plan, and whether it is correct.

    `_kept_facts` follows these references.
    """
    yield "runnable", plan.runnable, "refusals", plan.runnable is not bool(plan.refusals)
    why_not = tuple(problem.message for problem in plan.refusals)
    yield "why_not", plan.why_not, "refusals", plan.why_not == why_not
    yield "phases", sorted(plan.phases), "spec", plan.phases.keys() == set(spec.phases)
    first = plan.launch_documents.get(names.launch_file(plan.units[0].name), {})
    yield "launch_documents", sorted(plan.launch_documents), "units", "kv_cache" in first
    for number, unit in enumerate(plan.units):
        yield f"units.{number}.expert_map", unit.expert_map, "expert_maps", unit.expert_map in plan.expert_maps


def _check_decisions(plan: Plan) -> Iterator[Reference]:
    """Yield each decision, and whether its value is the spec's. Reasons are not checked."""
    for number, each in enumerate(plan.decisions):
        yield f"decisions.{number}.value", each.value, "spec", each.value == _value_of(each.path, plan)


def _value_of(path: str, plan: Plan) -> Any:
    """Return what the planned spec has at `path`, as a decision gives it: of windows their number."""
    section, _, field = path.rpartition(".")
    if section in plan.phases and field == "units":
        return len([unit for unit in plan.units if unit.phase == section])
    found = value_at(plan.written, path)
    return counted(len(found), "window") if field == "windows" and isinstance(found, list) else found


def _kept_facts(plan: Plan, spec: Spec) -> KeptFacts:
    nodes = {phase: [tuple(unit.nodes) for unit in plan.units_of(phase)] for phase in spec.phases}
    rows = {unit.phase: plan.expert_maps[unit.expert_map].physical_to_logical for unit in plan.units}
    maps = {phase: rows.get(phase, ()) for phase in spec.phases}
    return KeptFacts(shared_facts(plan), spec, nodes, maps, plan.runnable)


def _check_rebuilt(plan: Plan, spec: Spec, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each value of the deployed sections that does not follow from the plan's other sections."""
    sections = rebuilt_sections(_kept_facts(plan, spec))
    running = _RebuiltSections.model_validate({key: sections[key] for key in _RebuiltSections.model_fields}).model_dump(
        mode="json"
    )
    for unit, other in zip(data["units"], running["units"], strict=False):
        other["why"] = unit["why"]
    for key in _RebuiltSections.model_fields:
        for path, value in _differences(data.get(key), running.get(key), key):
            rule, reason = "S908 must agree with the rest of the plan", "what runs follows from the rest of the plan"
            yield Finding(path, value, rule, reason, PLAN_AGAIN)


def _differences(written: Any, expected: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, written value) of each difference, with None for a mapping or list. Digests come last."""
    if isinstance(written, dict) and isinstance(expected, dict):
        for key in sorted(written.keys() | expected.keys(), key=lambda key: (key.endswith("_digest"), key)):
            yield from _differences(written.get(key), expected.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(written, list) and isinstance(expected, list) and len(written) == len(expected):
        if written == expected:
            return  # one fast comparison of thousands of ranks and slots
        for index, (one, other) in enumerate(zip(written, expected, strict=True)):
            yield from _differences(one, other, f"{path}.{index}")
    elif type(written) is not type(expected) or written != expected:
        yield path, None if isinstance(written, dict | list) else written

"""A plan's JSON, read back: validated as a whole before anything in it is used.

A file that was edited by hand, torn, or made up must not reach a cluster. What is checked, in this order:
    version         ours, since another version's keys may mean something else
    shapes          of every key that is read
    digests         recomputed: of the plan, its spec and each expert map
    references      units, maps, nodes and launch documents are each other's
    launch files    their digests recomputed, with the maps that they name written out; and the documents themselves
    the spec        by the rules that need no file

Nothing here plans: a loaded plan is carried out as it stands.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from planner.cluster.inventory import nodes_of
from planner.facts import names
from planner.facts.digest import digest_of
from planner.facts.files import read_file
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.plan.deployable import Deployable, document_digest, plan_digest
from planner.plan.launch import LaunchDocument, launch_digest, unit_digest, with_map
from planner.plan.plan import PLAN_VERSION
from planner.plan.pods import pods_of
from planner.plan.told import told_otherwise
from planner.plan.warned import warning_from
from planner.problems.errors import CallError, Problem, Violation
from planner.schedule.timetable import timetable_of
from planner.spec.check import mistakes_in
from planner.spec.schedule import is_undecided_day
from planner.spec.schema import Spec

__all__ = ["LoadedPlan", "Rows", "load_plan", "read_plan"]

MAX_DEPTH = 32  # as of specs; a plan nests seven deep
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a character, which is none by itself
NO_PLAN = "S906 must be a plan that tidemill plan -o wrote"
WRITE_ONE = "write one with tidemill plan -o"
PLAN_AGAIN = "change the spec and plan it again"
WANTED = {
    "list_type": "a list",
    "string_type": "text",
    "string_pattern_mismatch": "a digest, or a rule with its id",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "literal_error": "a word that belongs there",
    "union_tag_invalid": "of a kind that is known",
    "greater_than_equal": "that large",
    "less_than_equal": "that small",
    "too_short": "that long",
}

Rows = list[list[int]]  # [layers][slots]: the expert there
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

_Reference = tuple[str, object, str, bool]  # path, what stands there, what it must agree with, whether it does


@dataclass(frozen=True)
class LoadedPlan:
    """A plan as its JSON has it."""

    document: Mapping[str, Any]
    deployable: Deployable
    maps: Mapping[Phase, Rows]


class _Part(BaseModel):
    """A part of the JSON. Keys that nobody here reads are not looked at."""

    model_config = ConfigDict(strict=True)


class _Unit(_Part):
    name: str
    nodes: Annotated[list[str], Field(min_length=1)]
    phase: Phase
    expert_map: str
    ranks: Annotated[int, Field(ge=1)]
    unit_digest: str
    why: str


class _Map(_Part):
    physical_to_logical: Rows


class _NamedMap(_Part):
    sha256: str
    first_layer: Annotated[int, Field(ge=0)] = 0  # of other engines


class _KvCache(_Part):
    bytes_per_token: Annotated[int, Field(ge=1)]


class _Checkpoint(_Part):
    model_config = ConfigDict(extra="forbid")

    uri: str
    config_digest: Digest | None
    weights_digest: Digest | None


class _UnitDocument(_Part):
    kind: Literal["unit", "sglang", "vllm"]
    expert_map: _NamedMap | None = None  # of an engine that reads none
    model_type: str | None = None  # of other engines
    kv_cache: _KvCache
    unit_digest: Digest
    launch_digest: Digest


class _GatewayDocument(_Part):
    kind: Literal["gateway"]
    checkpoint: _Checkpoint | None
    launch_digest: Digest


class _Phase(_Part):
    num_logical_experts: Annotated[int, Field(ge=1)]
    num_physical_experts: Annotated[int, Field(ge=1)]


class _Memory(_Part):
    kv_tokens: Annotated[int, Field(ge=1)]
    kv_bytes_per_token: Annotated[int, Field(ge=1)]
    kv_bytes_per_request: Annotated[int, Field(ge=0)] = 0
    weights_bytes: Annotated[int, Field(ge=1)]
    gpu_bytes: Annotated[int, Field(ge=1)]


class _Warning(_Part):
    path: str
    value: Any
    rule: Annotated[str, Field(pattern=r"^W[0-9]{3} ")]
    reason: str
    fix: str
    changes: list[dict[str, Any]] = []


class _Step(_Part):
    at: str
    units: list[str]


class _OtherDays(_Part):
    days: list[str]
    steps: list[_Step]


class _Schedule(_Part):
    steps: list[_Step]
    other_days: list[_OtherDays] = []


class _Plan(_Part):
    """The keys in the order in which their mistakes are told."""

    units: list[_Unit]
    expert_maps: dict[str, _Map]
    launch_documents: dict[str, Annotated[_UnitDocument | _GatewayDocument, Field(discriminator="kind")]]
    name: str
    spec: dict[str, Any]
    digest: Digest
    document_digest: Digest
    spec_digest: Digest
    inputs: dict[str, Digest]
    phases: dict[Phase, _Phase]
    memory: dict[Phase, _Memory]
    runnable: bool
    why_not: list[str]
    warnings: list[_Warning]
    schedule: _Schedule | None = None


def read_plan(path: Path) -> LoadedPlan:
    """The plan in the file at `path`. Raises CallError when there is none."""
    try:
        content = read_file(path)
    except OSError as error:
        raise _refused(path, "S905 must be a readable plan", error.strerror or str(error)) from None
    return load_plan(content, path)


def load_plan(content: bytes, path: Path) -> LoadedPlan:
    """The plan in `content`, which was read from `path`. Raises CallError with the first thing that is wrong."""
    data = _document(content, path)
    if type(data["version"]) is not int or data["version"] != PLAN_VERSION:
        rule, fix = f"S907 must be a plan of version {PLAN_VERSION}", "plan its spec again with this tidemill"
        raise _refused(path, rule, f"it has version {json.dumps(data['version'])[:20]}", fix)
    try:
        plan = _Plan.model_validate(data)
        spec = Spec.model_validate(plan.spec)
    except ValidationError as error:
        prefix = "spec." if error.title == Spec.__name__ else ""
        raise _refused(path, NO_PLAN, prefix + _reason(error.errors(include_url=False)[0])) from None
    for violation in chain(_edited(plan, spec, data), _disagreeing(plan, spec), _wrong_in_spec(plan)):
        raise CallError([violation.at(str(path))])
    maps = {sha256: each.physical_to_logical for sha256, each in plan.expert_maps.items()}
    documents = {file: with_map(each, maps) for file, each in data["launch_documents"].items()}
    told = told_otherwise(spec, list(_units(plan)), data, documents)
    for violation in chain(_edited_documents(documents), _edited_elsewhere(plan, data), told):
        raise CallError([violation.at(str(path))])
    deployable = Deployable(
        name=plan.name,
        engine=spec.engine_name,
        digest=plan.digest,
        kubernetes=spec.kubernetes,
        gateway=spec.gateway,
        units=tuple(_units(plan)),
        pods=pods_of(spec, {phase: each.weights_bytes for phase, each in plan.memory.items()}),
        timetable=timetable_of(spec, tuple(_units(plan))),
        drain_s=spec.drain_s,
        launch_documents=documents,
        refusals=tuple(_refusal(why, path) for why in plan.why_not),
        warnings=tuple(warning_from(each.model_dump(exclude_unset=True), path) for each in plan.warnings),
    )
    return LoadedPlan(data, deployable, {unit.phase: maps[unit.expert_map] for unit in plan.units})


def _document(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `content`, which has a version."""
    try:
        data = json.loads(content, parse_constant=_not_a_number, parse_float=_finite, object_pairs_hook=_each_once)
        is_deep = not _is_shallow(data, MAX_DEPTH)
        if SURROGATE.search(content) and not is_deep:
            json.dumps(data, ensure_ascii=False).encode()  # ValueError, if it is not one of a pair
    except _GivenTwice as error:
        raise _refused(path, NO_PLAN, f"it has two keys {error}") from None
    except (ValueError, RecursionError):
        raise _refused(path, NO_PLAN, "it cannot be parsed as JSON") from None
    if is_deep:
        raise _refused(path, NO_PLAN, f"it is nested more than {MAX_DEPTH} deep")
    if not isinstance(data, dict) or "version" not in data:
        raise _refused(path, NO_PLAN, "it has no version" if isinstance(data, dict) else "it is not a JSON object")
    return data


class _GivenTwice(ValueError):
    """A key that an object has twice; as text the key."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what Python would take for one: which of two values a reviewer saw nobody knows."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _GivenTwice(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return found


def _not_a_number(word: str) -> NoReturn:
    """Refuse what Python would take for JSON: NaN and Infinity."""
    raise ValueError(word)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _is_shallow(value: Any, room: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return room > 0 and all(_is_shallow(each, room - 1) for each in inner if isinstance(each, dict | list))


def _edited(plan: _Plan, spec: Spec, data: Mapping[str, Any]) -> Iterator[Violation]:
    """Digests that are not of what they stand for."""
    yield from _differs("digest", plan.digest, plan_digest(data, spec))
    yield from _differs("spec_digest", plan.spec_digest, digest_of(spec.model_dump(mode="json")))
    for sha256, each in plan.expert_maps.items():
        yield from _differs(f"expert_maps.{sha256}", sha256, digest_of(each.physical_to_logical))


def _edited_documents(documents: Mapping[str, LaunchDocument]) -> Iterator[Violation]:
    """The same of launch documents."""
    for file, document in documents.items():
        path = f"launch_documents.{file}"
        yield from _differs(f"{path}.launch_digest", document["launch_digest"], launch_digest(document))
        if document["kind"] != "gateway":
            yield from _differs(f"{path}.unit_digest", document["unit_digest"], unit_digest(document))


def _edited_elsewhere(plan: _Plan, data: Mapping[str, Any]) -> Iterator[Violation]:
    """What runs is as planned; what a reviewer reads beside it is not."""
    yield from _differs("document_digest", plan.document_digest, document_digest(data))


def _differs(path: str, written: str, computed: str) -> Iterator[Violation]:
    if written != computed:
        rule = f"S909 must match the digest of the content ({computed[:19]}...)"
        yield Violation(path, written, rule, "the plan was edited after tidemill plan wrote it", PLAN_AGAIN)


def _disagreeing(plan: _Plan, spec: Spec) -> Iterator[Violation]:
    """Parts that refer to what is not there, or is another's; each is looked at only when those before it agree."""
    for path, value, source, agrees in chain(_of_plan(plan, spec), _of_units(plan, spec), _of_day(plan, spec)):
        if not agrees:
            reason = "the parts of this plan contradict each other"
            yield Violation(path, value, f"S908 must agree with {source}", reason, WRITE_ONE)


def _of_plan(plan: _Plan, spec: Spec) -> Iterator[_Reference]:
    unit_names = [unit.name for unit in plan.units]
    files = {*map(names.launch_file, unit_names), names.GATEWAY_LAUNCH_FILE}
    gateway = plan.launch_documents.get(names.GATEWAY_LAUNCH_FILE)
    yield "name", plan.name, "spec.name", plan.name == spec.name
    yield "runnable", plan.runnable, "why_not", plan.runnable is not bool(plan.why_not)
    yield "launch_documents", sorted(plan.launch_documents), "units", plan.launch_documents.keys() == files
    yield f"launch_documents.{names.GATEWAY_LAUNCH_FILE}", None, "its kind", isinstance(gateway, _GatewayDocument)
    for place, step in _steps(plan.schedule):
        yield f"{place}.units", step.units, "units", set(step.units) <= set(unit_names)


def _of_units(plan: _Plan, spec: Spec) -> Iterator[_Reference]:
    free = {node.name for node in nodes_of(spec.cluster)}.difference(spec.cluster.spares)
    for index, (unit, placed) in enumerate(zip(plan.units, _units(plan), strict=True)):
        path, name = f"units.{index}", names.unit_name(spec.name, unit.phase, placed.index)
        yield f"{path}.phase", unit.phase, "spec", unit.phase in spec.phases
        yield f"{path}.name", unit.name, f"its phase and place ({name})", unit.name == name
        are_free = free.issuperset(unit.nodes) and len(set(unit.nodes)) == len(unit.nodes)
        yield f"{path}.nodes", unit.nodes, "spec.cluster.nodes and the other units", are_free
        free.difference_update(unit.nodes)
        yield f"{path}.ranks", unit.ranks, f"spec.{unit.phase}.ep_size", unit.ranks == spec.phase(unit.phase).ep_size
        yield f"{path}.expert_map", unit.expert_map, "expert_maps", unit.expert_map in plan.expert_maps
        yield f"{path}.expert_map", unit.expert_map, f"phases.{unit.phase}", _holds(plan, unit)
        yield from _of_document(plan, unit, path)


def _of_day(plan: _Plan, spec: Spec) -> Iterator[_Reference]:
    """What units do over the day is what the spec's schedule says."""
    yield "spec.schedule", None, "schedule", spec.schedule is None or not is_undecided_day(spec.schedule)
    timetable = timetable_of(spec, tuple(_units(plan)))
    told = [(step.at, step.units) for step in plan.schedule.steps] if plan.schedule else []
    planned = [(step.at, list(step.units)) for step in timetable.steps] if timetable else []
    yield "schedule.steps", None, "spec.schedule", told == planned
    others = [(each.days, [(step.at, step.units) for step in each.steps]) for each in _other_days(plan.schedule)]
    of_spec = [
        (list(each.days), [(step.at, list(step.units)) for step in each.steps])
        for each in (timetable.other_days if timetable else ())
    ]
    yield "schedule.other_days", None, "spec.schedule", others == of_spec


def _other_days(schedule: _Schedule | None) -> list[_OtherDays]:
    return schedule.other_days if schedule else []


def _steps(schedule: _Schedule | None) -> Iterator[tuple[str, _Step]]:
    """Yield every state of every day, and where it stands."""
    for index, step in enumerate(schedule.steps if schedule else ()):
        yield f"schedule.steps.{index}", step
    for number, other in enumerate(_other_days(schedule)):
        for index, step in enumerate(other.steps):
            yield f"schedule.other_days.{number}.steps.{index}", step


def _of_document(plan: _Plan, unit: _Unit, path: str) -> Iterator[_Reference]:
    """A unit and its launch document; what else that tells, `told.py` compares."""
    source = f"launch_documents.{names.launch_file(unit.name)}"
    document = plan.launch_documents[names.launch_file(unit.name)]
    yield f"{path}.name", unit.name, source, isinstance(document, _UnitDocument)
    assert isinstance(document, _UnitDocument)  # else whoever reads this has raised
    told = document.expert_map.sha256 if document.expert_map else unit.expert_map
    yield f"{path}.unit_digest", unit.unit_digest, source, unit.unit_digest == document.unit_digest
    yield f"{path}.expert_map", unit.expert_map, f"{source}.expert_map", unit.expert_map == told


def _holds(plan: _Plan, unit: _Unit) -> bool:
    """Whether each layer of the unit's map has the phase's slots, and each of its experts in one at least."""
    rows = plan.expert_maps[unit.expert_map].physical_to_logical
    phase = plan.phases.get(unit.phase)
    if phase is None or not rows or len(rows[0]) < phase.num_logical_experts:
        return False
    experts = set(range(phase.num_logical_experts))
    return all(set(row) == experts and len(row) == phase.num_physical_experts for row in rows)


def _wrong_in_spec(plan: _Plan) -> Iterator[Violation]:
    """The rules of specs: names that become files and objects must be names here too."""
    for mistake in mistakes_in(plan.spec):
        yield Violation(f"spec.{mistake.path}", mistake.value, mistake.rule, mistake.reason, PLAN_AGAIN)


def _units(plan: _Plan) -> Iterator[Unit]:
    """Return the units as placed, numbered in their phases."""
    counts: dict[Phase, int] = {}
    for unit in plan.units:
        index = counts.get(unit.phase, 0)
        counts[unit.phase] = index + 1
        yield Unit(unit.name, unit.phase, index, tuple(unit.nodes), unit.ranks // len(unit.nodes), unit.why)


def _refusal(why: str, path: Path) -> Problem:
    return Violation("runnable", False, "S910 must be true to render or run the plan", why, PLAN_AGAIN).at(str(path))


def _reason(detail: ErrorDetails) -> str:
    """The first thing that is not as in a plan."""
    *parents, last = map(str, detail["loc"])
    if detail["type"] in ("missing", "union_tag_not_found"):
        missing = last if detail["type"] == "missing" else "kind"
        inside = parents if detail["type"] == "missing" else [*parents, last]
        return f"{'.'.join(inside) or 'it'} has no {missing}"
    return f"{'.'.join([*parents, last])} is not {WANTED.get(detail['type'], 'an object')}"


def _refused(path: Path, rule: str, reason: str, fix: str = WRITE_ONE) -> CallError:
    return CallError([Violation("", None, rule, reason, fix).at(str(path))])

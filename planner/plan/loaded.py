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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.facts.digest import digest_of
from planner.facts.files import read_file
from planner.facts.terms import Phase
from planner.plan.deployable import Deployable, document_digest, plan_digest
from planner.plan.launch import LaunchDocument, launch_digest, unit_digest, with_map
from planner.plan.plan import PLAN_VERSION
from planner.plan.pods import pods_of
from planner.plan.references import WRITE_ONE, disagreeing
from planner.plan.shapes import PlanShape, Rows, misshapen
from planner.plan.strict_json import NotStrict, parsed_json
from planner.plan.told import told_otherwise
from planner.plan.warned import warning_from
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.schedule.timetable import timetable_of
from planner.spec.check import mistakes_in
from planner.spec.schema import Spec

__all__ = ["LoadedPlan", "load_plan", "read_plan"]

NO_PLAN = "S906 must be a plan that tidemill plan -o wrote"
PLAN_AGAIN = "change the spec and plan it again"


@dataclass(frozen=True)
class LoadedPlan:
    """A plan as its JSON has it."""

    document: Mapping[str, Any]
    deployable: Deployable
    maps: Mapping[Phase, Rows]


def read_plan(path: Path) -> LoadedPlan:
    """Return the plan in the file at `path`. Raises CallError when there is none."""
    try:
        content = read_file(path)
    except OSError as error:
        raise _refused(path, "S905 must be a readable plan", error.strerror or str(error)) from None
    return load_plan(content, path)


def load_plan(content: bytes, path: Path) -> LoadedPlan:
    """Return the plan in `content`, which was read from `path`. Raises CallError with the first thing that is wrong."""
    data = _document(content, path)
    if type(data["version"]) is not int or data["version"] != PLAN_VERSION:
        rule, fix = f"S907 must be a plan of version {PLAN_VERSION}", "plan its spec again with this tidemill"
        raise _refused(path, rule, f"it has version {json.dumps(data['version'])[:20]}", fix)
    try:
        plan = PlanShape.model_validate(data)
        spec = Spec.model_validate(plan.spec)
    except ValidationError as error:
        prefix = "spec." if error.title == Spec.__name__ else ""
        raise _refused(path, NO_PLAN, prefix + misshapen(error.errors(include_url=False)[0])) from None
    for finding in chain(_edited(plan, spec, data), disagreeing(plan, spec), _wrong_in_spec(plan)):
        raise CallError([finding.at(str(path))])
    maps = {sha256: each.physical_to_logical for sha256, each in plan.expert_maps.items()}
    documents = {file: with_map(each, maps) for file, each in data["launch_documents"].items()}
    told = told_otherwise(spec, plan.placed_units, data, documents)
    for finding in chain(_edited_documents(documents), _edited_elsewhere(plan, data), told):
        raise CallError([finding.at(str(path))])
    deployable = Deployable(
        name=plan.name,
        engine=spec.engine_name,
        digest=plan.digest,
        kubernetes=spec.kubernetes,
        gateway=spec.gateway,
        units=plan.placed_units,
        pods=pods_of(spec, {phase: each.weights_bytes for phase, each in plan.memory.items()}),
        timetable=timetable_of(spec, plan.placed_units),
        drain_s=spec.drain_s,
        launch_documents=documents,
        refusals=tuple(_refusal(why, path) for why in plan.why_not),
        warnings=tuple(warning_from(each.model_dump(exclude_unset=True), path) for each in plan.warnings),
    )
    return LoadedPlan(data, deployable, {unit.phase: maps[unit.expert_map] for unit in plan.units})


def _document(content: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in `content`, which has a version."""
    try:
        data = parsed_json(content)
    except NotStrict as error:
        raise _refused(path, NO_PLAN, str(error)) from None
    if not isinstance(data, dict) or "version" not in data:
        raise _refused(path, NO_PLAN, "it has no version" if isinstance(data, dict) else "it is not a JSON object")
    return data


def _edited(plan: PlanShape, spec: Spec, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield digests that are not of what they stand for."""
    yield from _differs("digest", plan.digest, plan_digest(data, spec))
    yield from _differs("spec_digest", plan.spec_digest, digest_of(spec.model_dump(mode="json")))
    for sha256, each in plan.expert_maps.items():
        yield from _differs(f"expert_maps.{sha256}", sha256, digest_of(each.physical_to_logical))


def _edited_documents(documents: Mapping[str, LaunchDocument]) -> Iterator[Finding]:
    """Yield digests of launch documents that are not of what they stand for."""
    for file, document in documents.items():
        path = f"launch_documents.{file}"
        yield from _differs(f"{path}.launch_digest", document["launch_digest"], launch_digest(document))
        if document["kind"] != "gateway":
            yield from _differs(f"{path}.unit_digest", document["unit_digest"], unit_digest(document))


def _edited_elsewhere(plan: PlanShape, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the whole document's digest where what a reviewer reads beside what runs was edited."""
    yield from _differs("document_digest", plan.document_digest, document_digest(data))


def _differs(path: str, written: str, computed: str) -> Iterator[Finding]:
    if written != computed:
        rule = f"S909 must match the digest of the content ({computed[:19]}...)"
        yield Finding(path, written, rule, "the plan was edited after tidemill plan wrote it", PLAN_AGAIN)


def _wrong_in_spec(plan: PlanShape) -> Iterator[Finding]:
    """Yield what breaks the rules of specs: names that become files and objects must be names here too."""
    for mistake in mistakes_in(plan.spec):
        yield Finding(f"spec.{mistake.path}", mistake.value, mistake.rule, mistake.reason, PLAN_AGAIN)


def _refusal(why: str, path: Path) -> Finding:
    return Finding("runnable", False, "S910 must be true to render or run the plan", why, PLAN_AGAIN).at(str(path))


def _refused(path: Path, rule: str, reason: str, fix: str = WRITE_ONE) -> CallError:
    return CallError([Finding("", None, rule, reason, fix).at(str(path))])

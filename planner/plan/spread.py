"""A plan as the files of a rendered folder: one for each unit, one for each phase's map, one for the rest.

    plan/plan.yaml          the spec as planned, the checkpoint's digests, the model, one GPU's memory
    plan/NAME-decode-0.yaml the nodes of a unit, in the order of its ranks
    plan/decode-map.yaml    the expert map of a phase, a line a layer

Changes in two branches are mostly in different files, so Git can merge them. What follows from these files is not
stored: launch documents, digests and the schedule are made again when the folder is read. Estimates and reasons are not
stored either, since a folder only says what runs. `join_plan(folder)` returns a plan with the same `digest` as the one
that `spread_plan` wrote.

The file of a unit or map has a digest of itself (`stamp.py`), so an edit by hand is refused. The shared file,
`plan.yaml`, has none, because most changes touch it; its content is checked as a spec is.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from planner.facts import names
from planner.facts.digest import digest_of_text, pretty_json
from planner.facts.part import Part
from planner.facts.stamp import add_stamp, is_stamped, split_stamp
from planner.facts.terms import Phase
from planner.plan.plan import PLAN_VERSION, Plan
from planner.plan.rebuild import KeptFacts, SharedFacts, contradictions, rebuild, shared_facts, spec_mistakes
from planner.plan.shapes import NO_PLAN, parse_object, plan_error, read_content, validate_part, validate_spec
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import apply_change, value_at
from planner.spec.schema import Spec

PLAN_FOLDER = "plan"
SHARED_FILE = f"{PLAN_FOLDER}/plan.yaml"
UNIT_PATH = re.compile(r"units\.(\d+)\.(.+)")
# Keys of specs that earlier versions wrote, with values that had no effect: without them the same runs.
FORMER_KEYS: tuple[tuple[str, Any], ...] = (
    *(("traffic.quantile", 0.75), ("cost.supplies", []), ("cost.prices.hours", [])),
    ("schedule.min_stay", "15min"),
)

Count = Annotated[int, Field(ge=1)]
Row = Annotated[tuple[int, ...], Field(min_length=1)]
P = TypeVar("P", bound=Part)


class _UnitFile(Part):
    nodes: Annotated[tuple[str, ...], Field(min_length=1)]


class _MapFile(Part):
    physical_to_logical: Annotated[tuple[Row, ...], Field(min_length=1)]


def spread_plan(plan: Plan) -> dict[str, str]:
    """Return file name -> text of the files in which a rendered folder keeps `plan`, which its engine can run."""
    maps = {
        _map_file(phase): _MapFile(physical_to_logical=plan.expert_maps[sha256].physical_to_logical)
        for phase, sha256 in plan.map_digests.items()
    }
    units = {_unit_file(each.name): _UnitFile(nodes=tuple(each.nodes)) for each in plan.units}
    texts = {name: add_stamp(_text(each), with_digest=True) for name, each in {**maps, **units}.items()}
    return {SHARED_FILE: add_stamp(_text(shared_facts(plan)))} | texts


def join_plan(folder: Path) -> Plan:
    """Return the plan that a rendered folder keeps. Raises CallError for the first missing or wrong file."""
    if not (folder / SHARED_FILE).is_file():
        raise _missing_plan(folder)
    try:
        return _join(folder)
    except CallError as error:
        raise CallError([replace(each, fix=_describe_repair(folder)) for each in error.findings]) from None


def _describe_repair(folder: Path) -> str:
    """Return the fix for a folder whose plan cannot be read, which is to restore it.

    Planning anew could move units that run.
    """
    quoted = shlex.quote(str(folder))
    of_branch = f"git rm -rfq {quoted} && git checkout BRANCH -- {quoted}"
    return f"put back what tidemill render wrote, after a merge that of one branch ({of_branch}), and render again"


def _missing_plan(folder: Path) -> CallError:
    """Return the error for a folder of an earlier version, which stored its plan as one file or not at all."""
    before = folder / "plan.json"
    runs = shlex.quote(str(before)) if before.is_file() else "PLAN.json, the plan of what runs"
    fix = f"render into a new folder with --previous {runs}"
    reason = "only a folder that this version of tidemill render wrote has it"
    return plan_error(folder / SHARED_FILE, "S905 must be a readable plan", reason, fix)


def _join(folder: Path) -> Plan:
    shared, file = _read_part(folder, SHARED_FILE, SharedFacts, PLAN_VERSION), folder / SHARED_FILE
    shared = shared.model_copy(update={"spec": _drop_former_keys(shared.spec)})
    spec = validate_spec(shared.spec, file)
    for finding in spec_mistakes(shared.spec, spec):
        raise CallError([finding.at(str(file))])
    nodes = {phase: list(_read_nodes(folder, spec, phase)) for phase in spec.phases}
    maps = {phase: _read_part(folder, _map_file(phase), _MapFile).physical_to_logical for phase in spec.phases}
    kept = KeptFacts(shared, spec, nodes, maps, is_runnable=True)  # no other plan is rendered
    _refuse_unknown_files(folder, {SHARED_FILE, *map(_map_file, kept.maps), *(_unit_file(u.name) for u in kept.units)})
    for finding in contradictions(kept):
        raise CallError([_locate(finding, kept, folder)])
    return rebuild(kept)


def _drop_former_keys(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec without each key that this version no longer knows, if the key's value had no effect.

    A former key with any other value stays, and is refused as an unknown field later.
    """
    changes = {path: None for path, idle in FORMER_KEYS if value_at(spec, path) == idle}
    return apply_change(spec, changes) if changes else spec


def _read_nodes(folder: Path, spec: Spec, phase: Phase) -> Iterator[tuple[str, ...]]:
    """Yield the nodes of each unit of a phase, as the folder has them."""
    for index in range(spec.num_units(phase)):
        yield _read_part(folder, _unit_file(names.unit_name(spec.name, phase, index)), _UnitFile).nodes


def _text(part: Part) -> str:
    return pretty_json(part.model_dump(mode="json", by_alias=True))


def _unit_file(name: str) -> str:
    return f"{PLAN_FOLDER}/{name}.yaml"


def _map_file(phase: Phase) -> str:
    return f"{PLAN_FOLDER}/{phase}-map.yaml"


def _read_part(folder: Path, name: str, part: type[P], version: int | None = None) -> P:
    """Return the file `name` as a `part`. Raises CallError if the file is missing, was edited, or has other content."""
    path = folder / name
    body, digest = split_stamp(_text_in(path))
    if digest not in (None, digest_of_text(body)) or (digest is None and name != SHARED_FILE):
        rule, reason = "S909 must match the digest in its first line", "it was edited after tidemill render wrote it"
        raise plan_error(path, rule, reason)
    parse_object(body.encode(), path, version)
    return validate_part(part, body.encode(), path)


def _text_in(path: Path) -> str:
    """Return the file's text with LF line ends, since Git may have changed them to CRLF."""
    try:
        return read_content(path).decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise plan_error(path, NO_PLAN, "it is not UTF-8") from None


def _refuse_unknown_files(folder: Path, known: set[str]) -> None:
    """Refuse the file of a unit or map that the spec does not have. A merge may leave one."""
    for path in sorted((folder / PLAN_FOLDER).glob("*.yaml")):
        if f"{PLAN_FOLDER}/{path.name}" not in known and is_stamped(_text_in(path)):
            raise plan_error(path, f"S908 must agree with {SHARED_FILE}", "its spec has no such unit or phase")


def _locate(finding: Finding, kept: KeptFacts, folder: Path) -> Finding:
    """Return the finding with the file of the folder that has the wrong value."""
    found = UNIT_PATH.fullmatch(finding.path)
    if found is None:
        return finding.at(str(folder / SHARED_FILE))
    unit, key = kept.units[int(found[1])], found[2]
    file = _map_file(unit.phase) if key == "expert_map" else _unit_file(unit.name)
    return replace(finding, path=key).at(str(folder / file))

"""Load a plan from its JSON, and validate all of it before anything is used.

A file that was edited by hand, truncated, or made up must not reach a cluster. The checks, in order:
    version         ours, since another version's keys may mean something else
    shapes          of every key
    digests         recomputed: of the plan, its spec and each expert map
    the spec        by the rules that need no file
    references      phases match the spec; units, maps, nodes and launch documents match each other
    the document    its digest
    launch files    rebuilt from the rest and compared
    extra keys      writing the plan again gives the same JSON

Loading plans nothing: a loaded plan is carried out as written.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from planner.facts.digest import digest_of
from planner.facts.files import read_file
from planner.facts.strict_json import NotStrict, parsed_json
from planner.plan.plan import PLAN_VERSION, Plan, document_digest, plan_digest
from planner.plan.references import WRITE_ONE, find_contradictions
from planner.plan.verify_launch import differences, verify_launch_documents
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.rules.check import mistakes_in
from planner.spec.schema import Spec

__all__ = ["PLAN_FILE", "load_plan", "read_plan"]

PLAN_FILE = "plan.json"  # in a rendered folder
NO_PLAN = "S906 must be a plan that tidemill plan -o wrote"
PLAN_AGAIN = "change the spec and plan it again"
EXPECTED_SHAPES = {
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "text",
    "string_pattern_mismatch": "a digest, or a rule with its id",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "literal_error": "a word that belongs there",
    "union_tag_invalid": "of a kind that is known",
    "greater_than_equal": "that large",
    "less_than_equal": "that small",
    "too_short": "that long",
}


def read_plan(path: Path) -> Plan:
    """Return the plan in the file or rendered folder at `path`. Raises CallError if there is none."""
    file = path / PLAN_FILE if path.is_dir() else path
    try:
        content = read_file(file)
    except OSError as error:
        fix = "render its spec into the folder again" if path.is_dir() else WRITE_ONE
        raise _plan_error(file, "S905 must be a readable plan", error.strerror or str(error), fix) from None
    return load_plan(content, file)


def load_plan(content: bytes, path: Path) -> Plan:
    """Return the plan in `content`, read from `path`. Raises CallError for the first problem."""
    data = _parse_document(content, path)
    if type(data["version"]) is not int or data["version"] != PLAN_VERSION:
        rule, fix = (
            f"S907 must be a plan of version {PLAN_VERSION}",
            "plan its spec again: tidemill plan SPEC -o PLAN.json",
        )
        written = data["version"] if type(data["version"]) is int else "no whole number"
        raise _plan_error(path, rule, f"its version is {written}", fix)
    try:
        plan = Plan.model_validate_json(content, context={"file": str(path)})
        spec = plan.spec
    except ValidationError as error:
        prefix = "spec." if error.title == Spec.__name__ else ""
        raise _plan_error(path, NO_PLAN, prefix + _describe_shape_error(error.errors(include_url=False)[0])) from None
    of_parts = chain(_check_digests(plan, data), _check_spec_rules(plan), find_contradictions(plan, spec))
    for finding in chain(of_parts, _check_document_digest(plan, data), verify_launch_documents(plan)):
        raise CallError([finding.at(str(path))])
    for key, _ in differences(data, plan.as_json()):
        raise _plan_error(path, NO_PLAN, f"{key} is not as this version of tidemill writes it")
    return plan


def _parse_document(content: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in `content`. It must have a version."""
    try:
        data = parsed_json(content)
    except NotStrict as error:
        raise _plan_error(path, NO_PLAN, str(error)) from None
    if not isinstance(data, dict) or "version" not in data:
        raise _plan_error(path, NO_PLAN, "it has no version" if isinstance(data, dict) else "it is not a JSON object")
    return data


def _describe_shape_error(detail: ErrorDetails) -> str:
    """Describe the part of the plan that has the wrong shape."""
    *parents, last = map(str, detail["loc"])
    if detail["type"] in ("missing", "union_tag_not_found"):
        missing = last if detail["type"] == "missing" else "kind"
        inside = parents if detail["type"] == "missing" else [*parents, last]
        return f"{'.'.join(inside) or 'it'} has no {missing}"
    if detail["type"] == "extra_forbidden":
        return f"{'.'.join([*parents, last])} is a key that this version of tidemill does not have"
    return f"{'.'.join([*parents, last])} is not {EXPECTED_SHAPES.get(detail['type'], 'an object')}"


def _check_digests(plan: Plan, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each digest that does not match its content."""
    yield from _compare_digests("digest", plan.digest, plan_digest(data, plan.spec))
    yield from _compare_digests("spec_digest", plan.spec_digest, digest_of(plan.spec.model_dump(mode="json")))
    for sha256, each in plan.expert_maps.items():
        yield from _compare_digests(f"expert_maps.{sha256}", sha256, digest_of(each.physical_to_logical))


def _check_document_digest(plan: Plan, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Report a document-digest mismatch: content that only reviewers read was edited."""
    yield from _compare_digests("document_digest", plan.document_digest, document_digest(data))


def _compare_digests(path: str, written: str, computed: str) -> Iterator[Finding]:
    if written != computed:
        rule = f"S909 must match the digest of the content ({computed[:19]}...)"
        yield Finding(path, written, rule, "the plan was edited after tidemill plan wrote it", PLAN_AGAIN)


def _check_spec_rules(plan: Plan) -> Iterator[Finding]:
    """Yield the spec's rule violations. Names become files and objects, so they must be valid here too."""
    for mistake in mistakes_in(plan.written):
        yield Finding(f"spec.{mistake.path}", mistake.value, mistake.rule, mistake.reason, PLAN_AGAIN)


def _plan_error(path: Path, rule: str, reason: str, fix: str = WRITE_ONE) -> CallError:
    return CallError([Finding("", None, rule, reason, fix).at(str(path))])

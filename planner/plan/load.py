"""Load a plan from its JSON, and validate all of it before anything is used.

A file that was edited by hand, truncated, or made up must not reach a cluster. The checks, in order:
    version         ours, since another version's keys may mean something else
    shapes          of every key
    digests         recomputed: of the plan and each expert map
    the spec        by the rules that need no file
    references      phases match the spec; units, maps, nodes and launch documents match each other
    the document    its digest
    launch files    rebuilt from the rest and compared
    extra keys      writing the plan again gives the same JSON

Loading plans nothing: a loaded plan is carried out as written. `spec_digest` is not recomputed, or each new field of
the spec, whose default it would cover, would refuse every plan of before; the document's digest covers it.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from planner.facts.digest import digest_of
from planner.plan.plan import PLAN_VERSION, Plan, document_digest, plan_digest
from planner.plan.references import find_contradictions, spec_mistakes
from planner.plan.shapes import NO_PLAN, parse_object, plan_error, read_content, validate_part, validate_spec
from planner.plan.spread import join_plan
from planner.plan.verify_launch import differences, verify_launch_documents
from planner.problems.errors import CallError
from planner.problems.finding import Finding

__all__ = ["load_plan", "read_plan"]

PLAN_AGAIN = "change the spec and plan it again"


def read_plan(path: Path) -> Plan:
    """Return the plan in the file or rendered folder at `path`. Raises CallError if there is none."""
    if path.is_dir():
        return join_plan(path)
    return load_plan(read_content(path), path)


def load_plan(content: bytes, path: Path) -> Plan:
    """Return the plan in `content`, read from `path`. Raises CallError for the first problem."""
    data = parse_object(content, path, PLAN_VERSION)
    plan = validate_part(Plan, content, path)
    spec = validate_spec(plan.written, path)
    of_parts = chain(_check_digests(plan, data), spec_mistakes(plan.written, spec), find_contradictions(plan, spec))
    for finding in chain(of_parts, _check_document_digest(plan, data), verify_launch_documents(plan)):
        raise CallError([finding.at(str(path))])
    for key, _ in differences(data, plan.as_json()):
        raise plan_error(path, NO_PLAN, f"{key} is not as this version of tidemill writes it")
    return plan


def _check_digests(plan: Plan, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each digest that does not match its content."""
    yield from _compare_digests("digest", plan.digest, plan_digest(data, plan.spec))
    for sha256, each in plan.expert_maps.items():
        yield from _compare_digests(f"expert_maps.{sha256}", sha256, digest_of(each.physical_to_logical))


def _check_document_digest(plan: Plan, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Report a document-digest mismatch: content that only reviewers read was edited."""
    yield from _compare_digests("document_digest", plan.document_digest, document_digest(data))


def _compare_digests(path: str, written: str, computed: str) -> Iterator[Finding]:
    if written != computed:
        rule = f"S909 must match the digest of the content ({computed[:19]}...)"
        yield Finding(path, written, rule, "the plan was edited after tidemill plan wrote it", PLAN_AGAIN)

"""What a user gives to a command that takes SPEC or PLAN.json: recognised by its content, not by its name.

JSON is also YAML, so a spec may be written in it. A plan is a JSON object with keys that only plans have.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.rules.check import check_document
from planner.spec.resolved import ResolvedSpec
from planner.spec.yaml import decode_document, read_content

if TYPE_CHECKING:
    from planner.plan.plan import Plan

__all__ = ["is_plan", "read_given", "read_spec"]

ONLY_IN_PLANS = ("assumed", "digest", "document_digest", "expert_maps", "launch_documents")  # the first comes first


def read_given(path: Path) -> "ResolvedSpec | Plan":
    """Return the spec or plan in the file at `path`, read once, or the plan of a rendered folder.

    Raises SpecError or CallError when it is neither.
    """
    if not path.is_dir():
        content = read_content(path)
        if not is_plan(content):
            return check_document(decode_document(content, path))
    from planner.plan.loaded import load_plan, read_plan  # imported late: a spec needs none of it

    return read_plan(path) if path.is_dir() else load_plan(content, path)


def read_spec(path: Path) -> ResolvedSpec:
    """Return the spec at `path`. Raises CallError for a plan, of which every key would be a mistake in a spec."""
    given = read_given(path)
    if isinstance(given, ResolvedSpec):
        return given
    rule, fix = "S912 must be a spec", "give the spec, or use the plan with render, up or status"
    raise CallError([Finding("", None, rule, "it is a finished plan and is not planned again", fix).at(str(path))])


def is_plan(content: bytes) -> bool:
    """Whether `content` is a plan, right, wrong or torn, and no spec: a JSON object with keys that only plans have."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return content.lstrip().startswith(b"{") and any(f'"{key}":'.encode() in content for key in ONLY_IN_PLANS)
    return isinstance(data, dict) and not data.keys().isdisjoint(ONLY_IN_PLANS)

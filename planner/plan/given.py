"""What a user gives to a command that takes SPEC or PLAN.json: recognised by its content, not by its name.

JSON is also YAML, so a spec may be written in it. A plan is a JSON object with keys that only plans have.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.spec.check import ResolvedSpec, check_document
from planner.spec.yaml import decode_document, read_content

if TYPE_CHECKING:
    from planner.plan.loaded import LoadedPlan

__all__ = ["is_plan", "read_given"]

ONLY_IN_PLANS = ("assumed", "digest", "document_digest", "expert_maps", "launch_documents")  # the first comes first


def read_given(path: Path) -> "ResolvedSpec | LoadedPlan":
    """The spec or the plan in the file at `path`, read once. Raises SpecError or CallError when it is neither."""
    content = read_content(path)
    if not is_plan(content):
        return check_document(decode_document(content, path))
    from planner.plan.loaded import load_plan  # who gives a spec should not wait for a plan's checks

    return load_plan(content, path)


def is_plan(content: bytes) -> bool:
    """Whether `content` is a plan, right, wrong or torn, and no spec: a JSON object with keys that only plans have."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return content.lstrip().startswith(b"{") and any(f'"{key}":'.encode() in content for key in ONLY_IN_PLANS)
    return isinstance(data, dict) and not data.keys().isdisjoint(ONLY_IN_PLANS)

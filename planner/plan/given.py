"""What a user gives to a command that takes SPEC or PLAN.json: recognised by its content, not by its name.

JSON is also YAML, so a spec may be written in it. A plan is a JSON object with keys that only plans have.
"""

from pathlib import Path

from planner.plan.loaded import LoadedPlan, is_plan, load_plan
from planner.spec.check import ResolvedSpec, check_document
from planner.spec.yaml import decode_document, read_content

__all__ = ["read_given"]


def read_given(path: Path) -> ResolvedSpec | LoadedPlan:
    """The spec or the plan in the file at `path`, read once. Raises SpecError or CallError when it is neither."""
    content = read_content(path)
    return load_plan(content, path) if is_plan(content) else check_document(decode_document(content, path))

"""Whose an object is: Tidemill's or not, and which plan's. Pure.

Tidemill's is what the field manager `tidemill` has applied. A plan's is what carries its name in `tidemill.dev/plan`;
an object without that label, be it that somebody took it away, belongs to whoever has it in his state.
"""

from planner.facts.names import PLAN_LABEL
from stacks.kube.drift import owned_fields
from stacks.kube.errors import ForeignError, OtherPlanError
from stacks.kube.manifest import Manifest, Reference

__all__ = ["is_ours", "plan_of", "require_ours"]


def plan_of(manifest: Manifest) -> str | None:
    """The plan that an object belongs to."""
    plan = (manifest["metadata"].get("labels") or {}).get(PLAN_LABEL)
    return str(plan) if plan else None


def is_ours(live: Manifest, *manifests: Manifest) -> bool:
    """Whether `live` is what was made from one of `manifests`."""
    return bool(owned_fields(live)) and plan_of(live) in {None, *map(plan_of, manifests)}


def require_ours(live: Manifest, *manifests: Manifest) -> None:
    """Raises ForeignError or OtherPlanError when `live` is none of ours."""
    if is_ours(live, *manifests):
        return
    reference = Reference.of(live)
    if owned_fields(live):
        raise OtherPlanError(reference, str(plan_of(live)))
    managers = {each["manager"] for each in live["metadata"].get("managedFields") or []}
    raise ForeignError(reference, sorted(managers))

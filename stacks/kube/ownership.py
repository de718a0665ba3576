"""The owner of an object: Tidemill or not, and which plan. Pure.

Tidemill owns objects that the field manager `tidemill` has applied; a plan owns those with its name in the label
`tidemill.dev/plan`. An object that is in no Pulumi state must pass both tests. One in a state was ours: the label is
enough, since other programs may have taken over every field; so is a field of ours, if somebody removed the label.
"""

from planner.facts.names import PLAN_LABEL
from stacks.kube.drift import owned_fields
from stacks.kube.errors import ForeignError, OtherPlanError
from stacks.kube.manifest import Manifest, Reference

__all__ = ["is_still_ours", "owning_plan", "require_still_ours", "require_takeable"]


def owning_plan(manifest: Manifest) -> str | None:
    """Return the plan that an object belongs to, or None."""
    plan = (manifest["metadata"].get("labels") or {}).get(PLAN_LABEL)
    return str(plan) if plan else None


def require_takeable(live: Manifest, manifest: Manifest) -> None:
    """Raise ForeignError or OtherPlanError unless `live` can be ours from a run whose state was lost."""
    if not (owned_fields(live) and owning_plan(live) in (None, owning_plan(manifest))):
        raise _foreign(live, manifest)


def is_still_ours(live: Manifest, *manifests: Manifest) -> bool:
    """Return whether `live` was made from one of `manifests`, even if it was edited since."""
    plan = owning_plan(live)
    return plan in set(map(owning_plan, manifests)) or (plan is None and bool(owned_fields(live)))


def require_still_ours(live: Manifest, *manifests: Manifest) -> None:
    """Raise ForeignError or OtherPlanError when it is not."""
    if not is_still_ours(live, *manifests):
        raise _foreign(live, *manifests)


def _foreign(live: Manifest, *manifests: Manifest) -> ForeignError | OtherPlanError:
    reference, plan = Reference.from_manifest(live), owning_plan(live)
    if plan is not None and plan not in set(map(owning_plan, manifests)):
        return OtherPlanError(reference, plan)
    managers = {each["manager"] for each in live["metadata"].get("managedFields") or []}
    return ForeignError(reference, sorted(managers))

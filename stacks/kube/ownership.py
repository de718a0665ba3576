"""The owner of an object: Tidemill or not, and which plan. Pure.

Tidemill owns what the field manager `tidemill` has applied. A plan owns what carries its name in `tidemill.dev/plan`.
An object that is in no state must pass both. One that is in a state was ours: other programs may have taken every
field since, so the label is enough; and where somebody took the label away, a field of ours is enough.
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
    """Raise ForeignError or OtherPlanError unless `live` may be made from `manifest`, with its state lost since."""
    if not (owned_fields(live) and owning_plan(live) in (None, owning_plan(manifest))):
        raise _foreign(live, manifest)


def is_still_ours(live: Manifest, *manifests: Manifest) -> bool:
    """Return whether `live` was made from one of `manifests`, whoever has edited it since."""
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

"""The owner of an object: Tidemill or not, and which plan. Pure.

Tidemill owns objects that the field manager `tidemill` has applied; a plan owns those with its name in the label
`tidemill.dev/plan`. An object that is in no Pulumi state must pass both tests; if it is to be adopted, from kubectl or
Git, the label is enough. One in a state was ours: the label is
enough, since other programs may have taken over every field; so is a field of ours, if somebody removed the label.
"""

from planner.facts.names import PLAN_LABEL
from stacks.kube.drift import FIELD_MANAGER, owned_fields
from stacks.kube.errors import ForeignError, OtherPlanError
from stacks.kube.manifest import Manifest, Reference

__all__ = ["is_still_ours", "other_managers", "owning_plan", "require_still_ours", "require_takeable"]


def owning_plan(manifest: Manifest) -> str | None:
    """Return the name of the plan that an object's label names; None without that label."""
    plan = (manifest["metadata"].get("labels") or {}).get(PLAN_LABEL)
    return str(plan) if plan else None


def require_takeable(live: Manifest, manifest: Manifest, *, adopts: bool = False) -> None:
    """Raise ForeignError or OtherPlanError unless an existing object may become the one that `manifest` describes.

    The object may be taken if we made it (in a run whose state was lost), or if `adopts` is true and the object is of
    the manifest's plan.
    """
    plan = owning_plan(live)
    if not (owned_fields(live) and plan in (None, owning_plan(manifest))) and not (
        adopts and _is_the_plans(live, manifest)
    ):
        raise _foreign(live, manifest)


def other_managers(live: Manifest) -> list[str]:
    """Return the names of the managers that set an object's fields, without Tidemill.

    Managers that set only its status do not count.
    """
    fields = live["metadata"].get("managedFields") or []
    return sorted({each["manager"] for each in fields if not each.get("subresource")} - {FIELD_MANAGER})


def is_still_ours(live: Manifest, *manifests: Manifest) -> bool:
    """Return whether `live` belongs to the plan of one of `manifests`, or to no plan but has fields that we applied."""
    plan = owning_plan(live)
    return plan in set(map(owning_plan, manifests)) or (plan is None and bool(owned_fields(live)))


def require_still_ours(live: Manifest, *manifests: Manifest) -> None:
    """Raise ForeignError or OtherPlanError if `is_still_ours` is false."""
    if not is_still_ours(live, *manifests):
        raise _foreign(live, *manifests)


def _foreign(live: Manifest, *manifests: Manifest) -> ForeignError | OtherPlanError:
    reference, plan = Reference.from_manifest(live), owning_plan(live)
    if plan is not None and plan not in set(map(owning_plan, manifests)):
        return OtherPlanError(reference, plan)
    is_the_plans = any(_is_the_plans(live, each) for each in manifests)
    return ForeignError(reference, other_managers(live), is_the_plans=is_the_plans)


def _is_the_plans(live: Manifest, manifest: Manifest) -> bool:
    """Return whether `live` has the label of the manifest's plan, as objects applied from a rendered folder do."""
    return owning_plan(live) is not None and owning_plan(live) == owning_plan(manifest)

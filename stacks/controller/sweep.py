"""Deletes what nobody needs any more: units that have left the plan, and launch files of former templates.

A tool that applies the plan prunes neither. A unit that leaves goes on serving until others do (`decide.py`), and a
group that keeps an older template needs that one's ConfigMaps whenever a pod of it is made anew.

    a unit      its LeaderWorkerSet is deleted, which drains it; then the objects that have the plan's and its labels
    a revision  LeaderWorkerSet keeps each template as a ControllerRevision, for ever while `partition` is set. It goes
                once no pod has that template and it is not the newest
    a ConfigMap goes once no pod, no Deployment and no template names it. It is a day old by then, so nobody is about to
                apply what names it

A name alone deletes nothing: whoever may write the deployment's `units` may not delete what others have by that name.

Which units have been in the plan is kept in the deployment's status: a unit that the plan does not have yet is applied
before the plan says so.
"""

from collections.abc import Collection, Sequence

from planner.facts import names
from planner.facts.day import DAY_S
from stacks.controller.follower import Follower, report_event
from stacks.controller.observe import list_units, previous_units
from stacks.kube.errors import NotServedError, ProviderError
from stacks.kube.manifest import Manifest, Reference, is_ending, mounted_configs, object_name, object_uid, parse_instant

__all__ = ["find_unused_configs", "find_unused_revisions", "remove_departed", "sweep"]

LOOK_S = 300.0  # assumed: often enough, since leftovers cost only a few kB
SET_LABEL = "leaderworkerset.sigs.k8s.io/name"
REVISION_LABEL = "leaderworkerset.sigs.k8s.io/template-revision-hash"


def remove_departed(follower: Follower, deployment: Manifest, leaving: Collection[str], now: float) -> list[str]:
    """Delete the `leaving` units, and what is left of units already deleted. Return all units that exist.

    Raises ProviderError if the cluster refuses or cannot be reached.
    """
    planned = [each["name"] for each in deployment["spec"]["units"]]
    departed = [unit for unit in previous_units(deployment) if unit not in planned]
    if not departed:
        return planned
    live = {object_name(each): each for each in list_units(follower.api, deployment)}
    left = []
    for unit in departed:
        if unit not in live and _delete_companions(follower, deployment, unit, now):
            continue
        left.append(unit)
        if unit in leaving and not is_ending(live[unit]):
            _delete_unit(follower, deployment, live[unit], now)
    return planned + left


def sweep(follower: Follower, deployment: Manifest, now: float, elapsed_s: float) -> None:
    """Delete unused revisions and ConfigMaps, in one round every `LOOK_S` seconds.

    The last round was `elapsed_s` ago. Nothing is deleted in other rounds and in a dry run; a failure is only reported.
    """
    if now % LOOK_S >= elapsed_s or follower.is_dry_run:
        return
    api, namespace = follower.api, deployment["metadata"]["namespace"]
    selector = f"{names.PLAN_LABEL}={deployment['metadata']['name']}"
    try:
        units = list_units(api, deployment)
        pods = api.list_all("v1", "Pod", namespace, labelSelector=selector, resourceVersion="0")
        revisions = api.list_all("apps/v1", "ControllerRevision", namespace, labelSelector=SET_LABEL)
        unused = find_unused_revisions(units, pods, revisions)
        unused_uids = {object_uid(each) for each in unused}
        kept = [each for each in revisions if object_uid(each) not in unused_uids]
        gateways = api.list_all("apps/v1", "Deployment", namespace, labelSelector=selector)
        configs = api.list_metadata("v1", "ConfigMap", namespace, labelSelector=selector)
        for each in [*unused, *find_unused_configs([*units, *pods, *kept, *gateways], configs, now)]:
            api.delete(Reference.from_manifest(each), object_uid(each))
    except ProviderError as error:
        follower.say(f"cannot delete what nobody needs any more: {error}")


def find_unused_revisions(
    units: Sequence[Manifest], pods: Sequence[Manifest], revisions: Sequence[Manifest]
) -> list[Manifest]:
    """Return the revisions of `units` that can be deleted.

    Each unit keeps its newest revision and, for each template that one of its pods has, the newest with that template.
    """
    owners = {object_uid(unit) for unit in units}
    used = {_revision(pod) for pod in pods}
    unused, newest = [], set()
    for each in sorted(revisions, key=lambda each: int(each["revision"]), reverse=True):
        if not any(owner["uid"] in owners for owner in each["metadata"].get("ownerReferences") or []):
            continue
        unit, template = _revision(each)
        if unit in newest and (unit, template) not in used:
            unused.append(each)
        newest.add(unit)
        used.discard((unit, template))  # a template that came back has two revisions: only the newer one is kept
    return unused


def find_unused_configs(users: Sequence[Manifest], configs: Sequence[Manifest], now: float) -> list[Manifest]:
    """Return which of `configs` are at least a day old and mounted by none of `users`."""
    named = {name for user in users for name in mounted_configs(user)}
    return [
        each
        for each in configs
        if object_name(each) not in named
        and (made := parse_instant(each["metadata"]["creationTimestamp"])) is not None
        and now - made >= DAY_S
    ]


def _delete_unit(follower: Follower, deployment: Manifest, unit: Manifest, now: float) -> None:
    name = object_name(unit)
    if follower.is_dry_run:
        follower.say(f"would delete {name}: it has left the plan")
        return
    follower.api.delete(Reference.from_manifest(unit), object_uid(unit))
    follower.say(f"delete {name}: it has left the plan")
    report_event(follower, deployment, "Delete", f"{name}: it has left the plan", now)


def _delete_companions(follower: Follower, deployment: Manifest, unit: str, now: float) -> bool:
    """Delete a unit's objects, by their labels, other than its LeaderWorkerSet and ConfigMaps (see `sweep`).

    Return whether none is left.
    """
    if follower.is_dry_run:
        return False
    metadata = deployment["metadata"]
    selector = f"{names.PLAN_LABEL}={metadata['name']},{names.UNIT_LABEL}={unit}"
    for api_version, kind in names.COMPANIONS:
        try:
            for each in follower.api.list_metadata(api_version, kind, metadata["namespace"], labelSelector=selector):
                _delete_companion(follower, deployment, each, unit, now)
        except NotServedError:
            continue
        except ProviderError as error:
            follower.say(f"cannot delete the {kind} of {unit}: {error}")
            return False
    return True


def _delete_companion(follower: Follower, deployment: Manifest, companion: Manifest, unit: str, now: float) -> None:
    if is_ending(companion):
        return
    follower.api.delete(Reference.from_manifest(companion), object_uid(companion))
    message = f"{companion['kind']} {object_name(companion)}: its unit {unit} has left the plan"
    follower.say(f"delete {message}")
    report_event(follower, deployment, "Delete", message, now)


def _revision(live: Manifest) -> tuple[str | None, str | None]:
    """Return (unit, hash of the template) of a pod or a revision, from its labels; None for a missing label."""
    labels = live["metadata"].get("labels") or {}
    return labels.get(SET_LABEL), labels.get(REVISION_LABEL)

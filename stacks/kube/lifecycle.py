"""The life of one object: create, update, read, delete, and foresee each.

    create   get: gone, or ours (a lost state is found again), or someone else's (refused) -> apply -> wait until ready
    update   get: ours -> apply by force: the manifest wins over hand edits, other fields are left alone -> wait
    read     get, dry run of apply -> the manifest as found (drift.py), and what it lacks to be ready
    delete   get: ours -> in the foreground, and wait until it is gone

Each change is sent with the uid of the object that was looked at, so that it changes no other. `ownership.py` says what
is ours, and `waiting.py` waits. This file does not know Pulumi.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce

from planner.facts.names import PLAN_LABEL, UNIT_LABEL, UNPRUNED
from stacks.kube import pods
from stacks.kube.api import DEFAULT_NAMESPACE, Api
from stacks.kube.diff import Difference, path_text
from stacks.kube.drift import guess_applied, is_surely_unchanged, merge_live_values, owned_fields
from stacks.kube.errors import (
    NotReadyError,
    NotServedError,
    ProviderError,
    RefusedError,
    SharedError,
    UnreachableError,
)
from stacks.kube.manifest import Manifest, Reference, is_ending, mounted_configs, object_uid
from stacks.kube.ownership import is_still_ours, other_managers, owning_plan, require_still_ours, require_takeable
from stacks.kube.readiness import is_off, is_withheld, missing, num_withheld
from stacks.kube.waiting import Patience, await_gone, await_ready, try_list

__all__ = [
    "FoundObject",
    "StoredObject",
    "check_template_pods",
    "create",
    "delete",
    "delete_all",
    "delete_exactly",
    "find_frozen_changes",
    "foresee_create",
    "foresee_update",
    "read",
    "update",
]

BUILTIN_POD_GROUPS = ("apps", "batch")  # API groups of the built-in kinds that make pods


@dataclass(frozen=True)
class StoredObject:
    """The state of an object after it was created or updated."""

    uid: str
    is_off: bool  # a person scaled it to 0: neither its manifest nor a controller sets replicas
    is_withheld: bool = False  # its pods keep their previous template until somebody drains it
    adopted_from: tuple[str, ...] = ()  # the field managers from which it was taken over


@dataclass(frozen=True)
class FoundObject:
    """A live object that we own.

    `manifest` is the manifest that the object was made from, with live values in drifted fields.
    """

    manifest: Manifest
    missing: str | None  # what it lacks to be ready
    drift_unknown: str | None = None  # why drift could not be determined


def create(
    api: Api, manifest: Manifest, patience: Patience, *, waits: bool = True, adopts: bool = False
) -> StoredObject:
    """Create an object and, if `waits`, wait until it is ready.

    An object that we made before is updated. With `adopts`, an object of the plan that another tool has applied is
    updated too; fields that only the other tool sets stay as they are.

    Raises NotReadyError if the object exists, or may exist, and is not ready. Any other error means that it was not
    created.
    """
    live = _get_after_deletion(api, Reference.from_manifest(manifest), patience)
    if live is None:
        return _store(api, manifest, live, patience, waits=waits)
    require_takeable(live, manifest, adopts=adopts)
    stored = _store(api, manifest, live, patience, waits=waits)
    return stored if owned_fields(live) else replace(stored, adopted_from=tuple(other_managers(live)))


def foresee_create(api: Api, manifest: Manifest, *, adopts: bool = False) -> None:
    """Raise those errors of `create`, with or without `adopts`, that ownership and a dry run show before it stores.

    A missing namespace is no error: the same run may create it.
    """
    live = api.get(Reference.from_manifest(manifest))
    if live is not None:
        require_takeable(live, manifest, adopts=adopts)
    try:
        api.apply(manifest, force=live is not None, dry_run=True)
    except RefusedError as error:
        if error.misses_namespace:
            _foresee_in_default(api, manifest)
        elif not (live is not None and error.is_about_frozen_fields):  # such objects are deleted and created anew
            raise


def update(api: Api, old: Manifest, manifest: Manifest, patience: Patience, *, waits: bool = True) -> StoredObject:
    """Update the object made from `old` to `manifest`, overwriting manual edits. Create it anew if it is gone.

    If `waits`, wait until the object is ready. Raises NotReadyError if the update was stored, or may have been, and the
    object is not ready.
    """
    live = _get_after_deletion(api, Reference.from_manifest(manifest), patience)
    if live is not None:
        require_still_ours(live, manifest, old)
    return _store(api, manifest, live, patience, waits=waits)


def foresee_update(api: Api, old: Manifest, manifest: Manifest) -> None:
    """Raise those errors of `update` that ownership and a dry run show before anything is stored.

    A missing namespace is no error: the same run may create it.
    """
    live = api.get(Reference.from_manifest(manifest))
    if live is not None:
        require_still_ours(live, manifest, old)
    try:
        api.apply(manifest, force=True, dry_run=True)
    except RefusedError as error:
        if not error.misses_namespace:
            raise


def check_template_pods(api: Api, manifest: Manifest) -> None:
    """Raise RefusedError if a dry run shows that pods of an object's template are invalid whatever their namespace.

    The server checks templates of its built-in kinds with the object, but pods of custom kinds only when a controller
    creates them. Refusals by admission do not count: admission may decide otherwise by then.
    """
    place, reference = pods.template_place(manifest), Reference.from_manifest(manifest)
    if place is None or manifest["apiVersion"].partition("/")[0] in BUILTIN_POD_GROUPS:
        return
    for namespace in (reference.namespace, DEFAULT_NAMESPACE):
        try:
            api.apply(pods.make_pod(reduce(dict.__getitem__, place, manifest), namespace), force=False, dry_run=True)
        except RefusedError as error:
            if error.misses_namespace:  # the same run may create it
                continue
            if error.is_invalid:
                raise RefusedError(f"pods of {reference}", error.status, error.answer) from error
        return


def find_frozen_changes(api: Api, manifest: Manifest, changed: Sequence[Difference]) -> list[Difference]:
    """Return the changes to immutable fields, such as `spec.selector` of a Deployment, found by a dry run.

    The list is also empty if the dry run fails for another reason: applying will report that.
    """
    if not changed:
        return []
    try:
        api.apply(manifest, force=True, dry_run=True)
    except RefusedError as error:
        if not error.is_about_frozen_fields:
            return []
        fields = [each.lower() for each in error.fields]
        named = [each for each in changed if any(_overlap(path_text(each.path).lower(), field) for field in fields)]
        return named or list(changed)
    except ProviderError:
        return []
    return []


def read(api: Api, manifest: Manifest) -> FoundObject | None:
    """Return the present state of the object made from `manifest`; None if it no longer exists.

    Return None too if an object of another owner now has its name: `create` will say whose object that is.
    """
    try:
        live = api.get(Reference.from_manifest(manifest))
    except NotServedError:  # the kind was removed, and its objects with it
        return None
    if live is None or not is_still_ours(live, manifest):
        return None
    if is_surely_unchanged(manifest, live):  # saves the dry run
        return FoundObject(manifest, missing(live))
    try:
        applied = api.apply(manifest, force=True, dry_run=True)
    except RefusedError as error:
        if error.is_about_rights:
            raise
        if not error.is_about_frozen_fields:  # no such error may prevent `destroy`
            return FoundObject(manifest, missing(live), str(error))
        applied = guess_applied(live, manifest)
    return FoundObject(merge_live_values(manifest, live, applied), missing(live))


def delete(api: Api, manifest: Manifest, patience: Patience, kept_uids: Collection[str] = ()) -> None:
    """Delete the object made from `manifest`, with all that it owns, and wait until it is gone. It may be gone already.

    Three kinds of objects are kept. One is an object whose uid is in `kept_uids`, one another owner's object of the
    same name. The third is a launch file that a pod still mounts: a unit that has not restarted yet needs it, and the
    controller deletes it later.

    Raises SharedError for a namespace that other plans use.
    """
    reference = Reference.from_manifest(manifest)
    try:
        live = api.get(reference)
        if live is None or object_uid(live) in kept_uids or not is_still_ours(live, manifest):
            return
        if UNPRUNED.keys() <= (manifest["metadata"].get("annotations") or {}).keys() and _is_mounted(api, live):
            return
        _delete(api, reference, object_uid(live), owning_plan(manifest), patience)
    except NotServedError:
        return


def delete_all(api: Api, manifests: Sequence[Manifest], patience: Patience) -> None:
    """Delete the objects made from `manifests` concurrently, each as `delete` does.

    Raises the first error once all deletions have ended.
    """
    _run_concurrently(lambda each: delete(api, each, patience), manifests)


def delete_exactly(api: Api, stored: Sequence[Manifest], patience: Patience) -> None:
    """Delete the live objects `stored` concurrently, by their uids. Newer objects of the same names stay.

    Raises the first error once all deletions have ended.
    """
    _run_concurrently(
        lambda each: _delete(api, Reference.from_manifest(each), object_uid(each), owning_plan(each), patience), stored
    )


def _run_concurrently(act: Callable[[Manifest], None], manifests: Sequence[Manifest]) -> None:
    with ThreadPoolExecutor(max(1, len(manifests))) as threads:
        ended = [threads.submit(act, each) for each in manifests]
    for each in ended:
        each.result()


def _is_mounted(api: Api, live: Manifest) -> bool:
    """Return whether `live` is a ConfigMap that a pod of its unit (or of its plan, if it has no unit) mounts."""
    if live["kind"] != "ConfigMap":
        return False
    labels, name = live["metadata"]["labels"], live["metadata"]["name"]
    label = UNIT_LABEL if UNIT_LABEL in labels else PLAN_LABEL
    found = try_list(api, "Pod", live["metadata"]["namespace"], labelSelector=f"{label}={labels[label]}")
    return any(name in mounted_configs(pod) for pod in found)


def _delete(api: Api, reference: Reference, uid: str, plan: str | None, patience: Patience) -> None:
    _require_unshared(api, reference, plan)
    api.delete(reference, uid)
    await_gone(api, reference, uid, patience)


def _get_after_deletion(api: Api, reference: Reference, patience: Patience) -> Manifest | None:
    """Return the live object; None if there is none.

    An object that is being deleted is awaited, then looked up again.
    """
    live = api.get(reference)
    if live is None or not is_ending(live):
        return live
    await_gone(api, reference, object_uid(live), patience)
    return api.get(reference)


def _store(
    api: Api, manifest: Manifest, live: Manifest | None, patience: Patience, *, waits: bool = True
) -> StoredObject:
    """Apply `manifest` to exactly the object `live`, or create an object if `live` is None.

    If `waits`, wait until the object is ready. Raises NotReadyError if it does not become ready, or if nobody knows
    whether it was stored.
    """
    reference = Reference.from_manifest(manifest)
    try:
        stored = api.apply(manifest, force=live is not None, uid=object_uid(live) if live else None)
    except (UnreachableError, RefusedError) as error:
        if isinstance(error, RefusedError) and not error.may_have_taken_effect:
            raise
        # It may be stored, or become so: an object that is not in the state would never be deleted.
        raise NotReadyError([f"whether {reference} was stored is not known; repeat: {error}"]) from error
    ready = await_ready(api, reference, object_uid(stored), patience) if waits and missing(stored) else stored
    off = is_off(ready) and "replicas" not in manifest["spec"] and not num_withheld(manifest)
    return StoredObject(object_uid(ready), off, is_withheld(live, stored))


def _foresee_in_default(api: Api, manifest: Manifest) -> None:
    """Dry-run a manifest in the namespace `default`, because its own namespace does not exist yet.

    Raises RefusedError only for a reason that holds in any namespace: an invalid manifest, or a webhook that does
    not answer.
    """
    stand_in = manifest | {"metadata": manifest["metadata"] | {"namespace": DEFAULT_NAMESPACE}}
    try:
        if api.get(Reference.from_manifest(stand_in)) is None:
            api.apply(stand_in, force=False, dry_run=True)
    except RefusedError as error:
        if error.is_about_the_manifest or error.silent_webhook:
            raise RefusedError(str(Reference.from_manifest(manifest)), error.status, error.answer) from error


def _require_unshared(api: Api, reference: Reference, plan: str | None) -> None:
    """Raise SharedError if `reference` is a namespace with objects of other plans, as far as the user may list them.

    Other plans are recognised by their service accounts.
    """
    if reference.kind != "Namespace":
        return
    accounts = try_list(api, "ServiceAccount", reference.name, labelSelector=PLAN_LABEL)
    if others := sorted({str(owning_plan(each)) for each in accounts} - {plan}):
        raise SharedError(reference, others)


def _overlap(one: str, other: str) -> bool:
    """Return whether two paths of fields are equal, or one of them lies below the other."""
    shorter, longer = sorted((one, other), key=len)
    return longer == shorter or (longer.startswith(shorter) and longer[len(shorter)] in ".[")

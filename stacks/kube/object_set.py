"""A set of objects that belong together, such as all objects of a unit: stored in order, and deleted in reverse.

Keys name them within the set, and stay when an object's own name changes with its content. Workloads come last, since
their pods need what they mount and their service account. A single object is a set with one key.
"""

from collections.abc import Callable, Collection, Mapping

from stacks.kube import lifecycle
from stacks.kube.api import Api
from stacks.kube.diff import differences
from stacks.kube.errors import NotReadyError, PartlyStoredError, ProviderError, RefusedError, SeveralErrors
from stacks.kube.lifecycle import FoundObject, StoredObject
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.readiness import is_awaited
from stacks.kube.waiting import Patience

__all__ = ["Manifests", "delete", "foresee", "main_object", "read", "sort_for_creation", "store"]

Manifests = Mapping[str, Manifest]
OnStored = Callable[[Reference, StoredObject], None]


def sort_for_creation(manifests: Manifests) -> list[tuple[str, Manifest]]:
    """Return (key, manifest) pairs in the order in which the objects are created: workloads last."""
    return sorted(manifests.items(), key=lambda item: (is_awaited(item[1]), item[0]))


def main_object(manifests: Manifests) -> tuple[str, Manifest]:
    """Return (key, manifest) of the set's workload. The other objects exist for the workload."""
    return sort_for_creation(manifests)[-1]


def store(
    api: Api,
    old: Manifests,
    new: Manifests,
    patience: Patience,
    on_stored: OnStored,
    *,
    skip_waiting: Collection[Reference] = (),
    kept_uids: Collection[str] = (),
    adopts: bool = False,
) -> None:
    """Store the objects of `new`, wait until they are ready, then delete the objects that only `old` has.

    `on_stored` is called for each stored object. Objects in `skip_waiting` are stored without waiting. With
    `adopts`, objects of the plan that other tools have applied are taken over. Objects whose uid is in `kept_uids`
    are not deleted.

    Raises PartlyStoredError if an object was stored before the error, or if a deletion fails, even the first one.
    Any other error means that nothing was stored or deleted.
    """
    before = _index_by_reference(old)
    done: dict[str, Manifest] = {}
    for key, manifest in sort_for_creation(new):
        reference = Reference.from_manifest(manifest)
        try:
            waits = reference not in skip_waiting
            on_stored(reference, _store_one(api, before.get(reference), manifest, patience, waits=waits, adopts=adopts))
        except NotReadyError as error:
            raise PartlyStoredError(_list_existing(old, done | {key: manifest}), error.reasons) from error
        except ProviderError as error:
            if not done:
                raise
            raise PartlyStoredError(_list_existing(old, done), [str(error)]) from error
        done[key] = manifest
    staying = _index_by_reference(new)
    try:
        delete(
            api,
            {key: each for key, each in old.items() if Reference.from_manifest(each) not in staying},
            patience,
            kept_uids,
        )
    except ProviderError as error:
        raise PartlyStoredError(_list_existing(old, done), [str(error)]) from error


def foresee(api: Api, old: Manifests, new: Manifests, *, adopts: bool = False) -> None:
    """Raise all those errors of `store` together that ownership and dry runs show before anything is stored."""
    before = _index_by_reference(old)
    errors = []
    for _, manifest in sort_for_creation(new):
        try:
            _foresee(api, before.get(Reference.from_manifest(manifest)), manifest, adopts=adopts)
            lifecycle.check_template_pods(api, manifest)
        except ProviderError as error:
            errors.append(error)
    if len(errors) > 1:
        raise SeveralErrors(errors)
    if errors:
        raise errors[0]


def read(api: Api, manifests: Manifests) -> dict[str, FoundObject]:
    """Return key -> present state of each object of the set that still exists."""
    looked = {key: lifecycle.read(api, manifest) for key, manifest in manifests.items()}
    return {key: found for key, found in looked.items() if found is not None}


def delete(api: Api, manifests: Manifests, patience: Patience, kept_uids: Collection[str] = ()) -> None:
    """Delete the objects of the set one after another, workloads first, each as `lifecycle.delete` does."""
    for _, manifest in reversed(sort_for_creation(manifests)):
        lifecycle.delete(api, manifest, patience, kept_uids)


def _store_one(
    api: Api, before: Manifest | None, manifest: Manifest, patience: Patience, *, waits: bool, adopts: bool
) -> StoredObject:
    """Create the object of `manifest`, or update the one made from `before`. Return the stored object.

    If immutable fields change, the old object is deleted first, and a new one created.
    """
    if before is None:
        return lifecycle.create(api, manifest, patience, waits=waits, adopts=adopts)
    if lifecycle.find_frozen_changes(api, manifest, list(differences(before, manifest))):
        lifecycle.delete(api, before, patience)
        return lifecycle.create(api, manifest, patience, waits=waits)
    return lifecycle.update(api, before, manifest, patience, waits=waits)


def _foresee(api: Api, before: Manifest | None, manifest: Manifest, *, adopts: bool) -> None:
    if before is None:
        lifecycle.foresee_create(api, manifest, adopts=adopts)
        return
    try:
        lifecycle.foresee_update(api, before, manifest)
    except RefusedError as error:
        if not error.is_about_frozen_fields:  # such objects are deleted and created anew
            raise


def _list_existing(old: Manifests, done: Manifests) -> dict[str, Manifest]:
    """Return key -> manifest of the objects that exist after a change from `old` stopped, having stored only `done`.

    If `old` and `done` have different objects under the same key, the old object's name is appended to its key.
    """
    stored = _index_by_reference(done)
    left = {key: each for key, each in old.items() if Reference.from_manifest(each) not in stored}
    return {(f"{key} {each['metadata']['name']}" if key in done else key): each for key, each in left.items()} | dict(
        done
    )


def _index_by_reference(manifests: Manifests) -> dict[Reference, Manifest]:
    return {Reference.from_manifest(each): each for each in manifests.values()}

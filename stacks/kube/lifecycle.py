"""What the provider does to one object: create, update, read, delete, and foresee each.

    create   get: gone, or ours (a lost state is found again), or someone else's (refused) -> apply -> wait until ready
    update   apply by force: the manifest wins over hand edits, other fields are left alone -> wait until ready
    read     get, dry run of apply -> the manifest as found (drift.py), and what it lacks to be ready
    delete   in the foreground, and wait until it is gone

Nothing here knows Pulumi.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stacks.kube import pods
from stacks.kube.api import DEFAULT_NAMESPACE, Api
from stacks.kube.diff import Difference, path_text
from stacks.kube.drift import as_found, laid_over, owned_fields
from stacks.kube.errors import (
    ForeignError,
    NotGoneError,
    NotReadyError,
    NotServedError,
    ProviderError,
    RefusedError,
    UnreachableError,
)
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.readiness import missing
from stacks.kube.waiting import Patience

__all__ = ["Found", "create", "delete", "foresee_create", "foresee_update", "frozen", "read", "update"]

# A namespace's conditions that say what is left in it.
HOLDING = {"NamespaceContentRemaining", "NamespaceFinalizersRemaining"}


@dataclass(frozen=True)
class Found:
    """A live object, seen through the manifest it was made from."""

    manifest: Manifest
    missing: str | None  # what it lacks to be ready
    unsure: str | None = None  # why drift could not be looked for


def create(api: Api, manifest: Manifest, patience: Patience) -> None:
    """Make it and wait. Raises NotReadyError once it exists; anything else means that it was not made."""
    reference = Reference.of(manifest)
    if _is_ending(api.get(reference)):
        _await_gone(api, reference, patience)
    is_there = _require_ours(api, reference)
    api.apply(manifest, force=is_there)
    _await_ready(api, reference, patience)


def foresee_create(api: Api, manifest: Manifest) -> None:
    """Raises what `create` would, as far as it can be known; the namespace may come in the same run."""
    is_there = _require_ours(api, Reference.of(manifest))
    try:
        api.apply(manifest, force=is_there, dry_run=True)
    except RefusedError as error:
        if error.misses_namespace:
            _foresee_elsewhere(api, manifest)
        elif not (is_there and error.is_about_frozen_fields):  # those are replaced, and deleted first
            raise


def update(api: Api, manifest: Manifest, patience: Patience) -> None:
    """Make it as the manifest says, whoever changed it, and wait. Raises NotReadyError once that is stored."""
    api.apply(manifest, force=True)
    _await_ready(api, Reference.of(manifest), patience)


def foresee_update(api: Api, manifest: Manifest) -> None:
    """Raises what `update` would; a namespace that someone deleted may come back in the same run."""
    try:
        api.apply(manifest, force=True, dry_run=True)
    except RefusedError as error:
        if not error.misses_namespace:
            raise


def frozen(api: Api, manifest: Manifest, changed: Sequence[Difference]) -> list[Difference]:
    """Those of the changes that the server would not make in place: `spec.selector` of a Deployment.

    Empty when it makes them all, and when it cannot be asked: whoever applies will hear it then.
    """
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


def read(api: Api, manifest: Manifest) -> Found | None:
    """What has become of the object that was made from `manifest`; None when it is gone."""
    try:
        live = api.get(Reference.of(manifest))
    except NotServedError:  # the kind went, and took its objects with it
        return None
    if live is None:
        return None
    try:
        applied = api.apply(manifest, force=True, dry_run=True)
    except RefusedError as error:
        if error.is_about_rights:
            raise
        if not error.is_about_frozen_fields:  # whatever it is, it must not keep anybody from `destroy`
            return Found(manifest, missing(live), str(error))
        applied = laid_over(live, manifest)
    return Found(as_found(manifest, live, applied), missing(live))


def delete(api: Api, reference: Reference, patience: Patience) -> None:
    """Make it go, with all that it owns, and wait. What is gone already is fine."""
    try:
        api.delete(reference)
        _await_gone(api, reference, patience)
    except NotServedError:
        return


def _require_ours(api: Api, reference: Reference) -> bool:
    """Whether it exists. Raises ForeignError when it does and nothing in it is ours."""
    live = api.get(reference)
    if live is not None and not owned_fields(live):
        managers = {each["manager"] for each in live["metadata"].get("managedFields") or []}
        raise ForeignError(reference, sorted(managers))
    return live is not None


def _foresee_elsewhere(api: Api, manifest: Manifest) -> None:
    """Let the server judge a manifest whose namespace is not there yet, in one that is. Raises RefusedError."""
    stand_in = manifest | {"metadata": manifest["metadata"] | {"namespace": DEFAULT_NAMESPACE}}
    try:
        if api.get(Reference.of(stand_in)) is None:
            api.apply(stand_in, force=False, dry_run=True)
    except RefusedError as error:
        if error.is_about_the_manifest:
            raise RefusedError(str(Reference.of(manifest)), error.status, error.answer) from error


def _await_ready(api: Api, reference: Reference, patience: Patience) -> None:
    def look() -> str | None:
        try:
            live = api.get(reference)
        except (UnreachableError, RefusedError) as error:  # a server may restart while we wait
            return str(error)
        return "it was deleted meanwhile" if live is None else missing(live)

    if lacking := patience.until_none(look):
        raise NotReadyError([f"{reference} is not ready {patience.spent}: {lacking}", *_reasons(api, reference)])


def _reasons(api: Api, reference: Reference) -> list[str]:
    """Why it is not ready, as far as we may look."""
    try:
        live = api.get(reference)
    except ProviderError:
        return []
    if live is None:
        return []
    found = _pods(api, live)
    about = f"involvedObject.name={reference.name},type=Warning"
    events = [] if found else _seen(api, "Event", reference.namespace, fieldSelector=about)
    return pods.reasons(live, found, _down(api, found), events)


def _pods(api: Api, live: Manifest) -> list[Manifest]:
    """Those of a workload, or of a whole namespace."""
    if live["kind"] == "Namespace":
        return _seen(api, "Pod", live["metadata"]["name"])
    selector = pods.pod_selector(live)
    return _seen(api, "Pod", live["metadata"]["namespace"], labelSelector=selector) if selector else []


def _down(api: Api, found: Sequence[Manifest]) -> set[str]:
    """The nodes that do not answer; they matter where there are pods."""
    return pods.not_ready_nodes(_seen(api, "Node", "")) if found else set()


def _seen(api: Api, kind: str, namespace: str, **selectors: str) -> list[Manifest]:
    """A list for an explanation: empty where we may not look."""
    try:
        return api.list_all("v1", kind, namespace, **selectors)
    except ProviderError:
        return []


def _await_gone(api: Api, reference: Reference, patience: Patience) -> None:
    def look() -> str | None:
        try:
            return "being deleted" if _is_ending(api.get(reference)) else None  # not ending: someone made another
        except (UnreachableError, RefusedError) as error:  # a server may restart while we wait
            return str(error)

    if left := patience.until_none(look):
        raise NotGoneError(
            f"{reference} is still there {patience.spent}: {'; '.join(_holding(api, reference)) or left}"
        )


def _is_ending(live: Manifest | None) -> bool:
    return live is not None and "deletionTimestamp" in live["metadata"]


def _holding(api: Api, reference: Reference) -> Iterator[str]:
    """What keeps an object that is being deleted, as far as we may look."""
    try:
        live = api.get(reference)
    except ProviderError:
        return
    if live is None:
        return
    for condition in (live.get("status") or {}).get("conditions") or []:
        if condition["type"] in HOLDING and condition["status"] == "True":
            yield condition["message"].rstrip(".")
    if finalizers := set(live["metadata"].get("finalizers") or []) - {"foregroundDeletion"}:
        yield f"finalizers {', '.join(sorted(finalizers))}"
    ending = list(filter(_is_ending, _pods(api, live)))
    down = _down(api, ending)
    for pod in ending:
        node = pod["spec"].get("nodeName", "")
        state = f"on node {node}, which is not ready" if node in down else "still ending"
        yield f"pod {pod['metadata']['name']} {state}"


def _overlap(one: str, other: str) -> bool:
    """Whether one of two paths contains the other."""
    shorter, longer = sorted((one, other), key=len)
    return longer == shorter or (longer.startswith(shorter) and longer[len(shorter)] in ".[")

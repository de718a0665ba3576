"""Waits until objects of the cluster are ready, or gone, and explains why one is not.

A wait has a deadline, can be cancelled, and reports its progress. The reasons come from the object's pods, nodes and
events (`pods.py`), as far as the user may look at them.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stacks.kube import pods
from stacks.kube.api import Api
from stacks.kube.errors import NotGoneError, NotReadyError, ProviderError, RefusedError, UnreachableError
from stacks.kube.manifest import Manifest, Reference, is_ending, list_conditions, object_uid
from stacks.kube.readiness import missing

__all__ = ["Patience", "await_all", "await_gone", "await_ready", "try_list"]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0  # short enough to notice readiness soon, and long enough to spare the API server
LONGEST_PAUSE_FOR_ALL_S = 0.25  # for many objects, of which one is looked at a time

# A namespace's conditions that say what is left in it.
HOLDING = {"NamespaceContentRemaining", "NamespaceFinalizersRemaining"}


@dataclass(frozen=True)
class Patience:
    """How to wait: the time limit of one wait, an event that cancels it, and a callback that reports its progress."""

    timeout_s: float
    cancelled: threading.Event
    report: Callable[[str], None]

    def wait_until_none(self, look: Callable[[], str | None], longest_pause_s: float = LONGEST_PAUSE_S) -> str | None:
        """Call `look`, which returns what is still missing, until it returns None. Return its last result.

        That result is not None if time is up or the user has cancelled. Each new result is reported.
        """
        deadline = time.monotonic() + self.timeout_s
        pause, said = FIRST_PAUSE_S, None
        while (missing := look()) is not None:
            if missing != said:
                self.report(missing)
                said = missing
            left = deadline - time.monotonic()
            if left <= 0 or self.cancelled.wait(min(pause, left)):
                return missing
            pause = min(1.5 * pause, longest_pause_s)
        return None

    @property
    def end_reason(self) -> str:
        """The reason why a wait ended without success: `after 10 min`, `when cancelled`."""
        if self.cancelled.is_set():
            return "when cancelled"
        minutes, seconds = divmod(round(self.timeout_s), 60)
        parts = [f"{minutes} min" if minutes else "", f"{seconds} s" if seconds or not minutes else ""]
        return f"after {' '.join(filter(None, parts))}"


def await_all(api: Api, stored: Mapping[Reference, str], patience: Patience) -> None:
    """Wait until all objects in `stored` (reference -> uid) have become ready.

    Raises NotReadyError, with a reason for each object that is not ready, when time is up or one is deleted.
    """
    left = list(stored)

    def look() -> str | None:
        while left:
            _, lacking = _check_readiness(api, left[0], stored[left[0]])
            if lacking:
                return f"{len(stored) - len(left)} of {len(stored)} are ready; {left[0]}: {lacking}"
            left.pop(0)
        return None

    if patience.wait_until_none(look, LONGEST_PAUSE_FOR_ALL_S):
        reasons = [reason for each in left for reason in _explain_unready(api, each, stored[each], patience)]
        if reasons:  # without reasons, the last one has just become ready
            raise NotReadyError(reasons)


def await_ready(api: Api, reference: Reference, uid: str, patience: Patience) -> Manifest:
    """Wait until an object is ready, and return it. Raises NotReadyError when time is up, or once it is deleted."""
    seen: list[Manifest] = []

    def look() -> str | None:
        live, lacking = _check_readiness(api, reference, uid)
        seen[:] = [live] if live else seen
        return lacking

    if lacking := patience.wait_until_none(look):
        raise NotReadyError(
            [f"{reference} is not ready {patience.end_reason}: {lacking}", *_find_reasons(api, reference)]
        )
    return seen[0]


def await_gone(api: Api, reference: Reference, uid: str, patience: Patience) -> None:
    """Wait until an object no longer exists.

    When time is up, raises NotGoneError, which says what keeps the object from being deleted.
    """

    def look() -> str | None:
        try:
            live = api.get(reference)
        except (UnreachableError, RefusedError) as error:  # a server may restart while we wait
            return str(error)
        return "being deleted" if live is not None and object_uid(live) == uid else None

    if left := patience.wait_until_none(look):
        raise NotGoneError(
            f"{reference} is still there {patience.end_reason}: {'; '.join(_explain_deletion(api, reference)) or left}"
        )


def try_list(api: Api, kind: str, namespace: str, **selectors: str) -> list[Manifest]:
    """Return all objects of a kind; empty if they cannot be listed. Meant for explanations, which may be incomplete."""
    try:
        return api.list_all("v1", kind, namespace, **selectors)
    except ProviderError:
        return []


def _check_readiness(api: Api, reference: Reference, uid: str) -> tuple[Manifest | None, str | None]:
    """Return (object, what it lacks to be ready or None). If the server fails, return (None, the error's text).

    Raises NotReadyError if the object was deleted or replaced: then waiting is useless.
    """
    try:
        live = api.get(reference)
    except (UnreachableError, RefusedError) as error:  # a server may restart while we wait
        return None, str(error)
    if live is None or object_uid(live) != uid or is_ending(live):
        raise NotReadyError([f"{reference} was deleted by somebody before it was ready; repeat to make it again"])
    return live, missing(live)


def _explain_unready(api: Api, reference: Reference, uid: str, patience: Patience) -> list[str]:
    """Return the reasons why an object is not ready; empty if it has become ready."""
    try:
        _, lacking = _check_readiness(api, reference, uid)
    except NotReadyError as error:
        return error.reasons
    return (
        [f"{reference} is not ready {patience.end_reason}: {lacking}", *_find_reasons(api, reference)]
        if lacking
        else []
    )


def _find_reasons(api: Api, reference: Reference) -> list[str]:
    """Return the reasons why an object is not ready, from its pods or events, as far as the user's rights allow.

    Return no reason if the object is gone or cannot be read.
    """
    try:
        live = api.get(reference)
    except ProviderError:
        return []
    if live is None:
        return []
    found = _list_pods(api, live)
    about = f"involvedObject.name={reference.name},type=Warning"
    events = [] if found else try_list(api, "Event", reference.namespace, fieldSelector=about)
    return pods.reasons(live, found, _down_nodes(api, found), events)


def _list_pods(api: Api, live: Manifest) -> list[Manifest]:
    """Return the pods of a workload, or of a whole namespace."""
    if live["kind"] == "Namespace":
        return try_list(api, "Pod", live["metadata"]["name"])
    selector = pods.pod_selector(live)
    return try_list(api, "Pod", live["metadata"]["namespace"], labelSelector=selector) if selector else []


def _down_nodes(api: Api, found: Sequence[Manifest]) -> set[str]:
    """Return the names of unready nodes. If `found` has no pods, nodes are not listed and the result is empty."""
    return pods.unready_nodes(try_list(api, "Node", "")) if found else set()


def _explain_deletion(api: Api, reference: Reference) -> Iterator[str]:
    """Yield the reasons why an object is still being deleted, as far as the user's rights allow."""
    try:
        live = api.get(reference)
    except ProviderError:
        return
    if live is None:
        return
    for condition in list_conditions(live):
        if condition["type"] in HOLDING and condition["status"] == "True":
            yield condition["message"].rstrip(".")
    if finalizers := set(live["metadata"].get("finalizers") or []) - {"foregroundDeletion"}:
        yield f"finalizers {', '.join(sorted(finalizers))}"
    ending = list(filter(is_ending, _list_pods(api, live)))
    down = _down_nodes(api, ending)
    for pod in ending:
        node = pod["spec"].get("nodeName", "")
        state = f"on node {node}, which is not ready" if node in down else "still ending"
        yield f"pod {pod['metadata']['name']} {state}"

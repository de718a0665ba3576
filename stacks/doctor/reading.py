"""One look at a cluster, for all that a plan needs of it. Stores nothing: it lists, asks, and applies in dry runs.

get, list                  nodes, pods, quotas, and what the plan's pods name
SelfSubjectAccessReview    the server's own answer to what the user may do
dry run of every object    exactly what `pulumi preview` would hear
dry run of a pod           of each component: what a template breaks (Pod Security, quotas, limit ranges) is otherwise
                           said when its controller makes the pod, in an event that nobody reads; in `default`, and only
                           for what no namespace takes, while the plan's own is not there or not yet as it will be
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from planner.facts.names import DEPLOYMENT_KIND
from stacks.doctor.definition import DEFINITION
from stacks.doctor.facts import ClusterFacts, Denied, Refused, Unseen, is_ending
from stacks.doctor.needs import Named, Needs
from stacks.kube.api import DEFAULT_NAMESPACE, Api
from stacks.kube.errors import NotServedError, ProviderError, RefusedError, UnreachableError
from stacks.kube.lifecycle import foresee_create
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.pods import pod_of

__all__ = ["read_facts"]

VERBS = ("get", "create", "patch", "delete")  # those of the provider
THREADS = 8  # requests at a time
SECURITY = "pod-security.kubernetes.io/"  # labels of a namespace
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"  # pods that have ended hold nothing

Kind = tuple[str, str]  # apiVersion, kind
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def read_facts(api: Api, needs: Needs) -> ClusterFacts:
    """Look at all that `needs` asks for. Raise ProviderError when the cluster as a whole gives no answer."""
    api.require_answer()
    unseen: list[Unseen] = []
    namespace = _seen(unseen, "the namespace", lambda: _get(api, "v1", "Namespace", "", needs.namespace))
    unserved = dict(_unserved(api, needs.kinds))
    served = [kind for kind in needs.kinds if kind not in unserved]
    objects = [each for each in needs.objects if (each["apiVersion"], each["kind"]) in served]
    if namespace is not None and is_ending(namespace):
        objects = []  # it takes no objects, and says so to each
    return ClusterFacts(
        namespace=namespace,
        nodes=_listed(api, unseen, "nodes", "v1", "Node", ""),
        pods=_listed(api, unseen, "pods", "v1", "Pod", "", fieldSelector=RUNNING),
        quotas=_listed(api, unseen, "quotas", "v1", "ResourceQuota", needs.namespace),
        storage_classes=_listed(api, unseen, "storage classes", "storage.k8s.io/v1", "StorageClass", ""),
        definition=_definition(api, unseen, served),
        named=dict(_named(api, unseen, needs.named)),
        unserved=unserved,
        denied=tuple(_denied(api, served, needs.namespace)),
        refused=tuple(_refused(api, objects)),
        refused_pods=tuple(_refused_pods(api, needs, takes_pods=_takes_pods(namespace, needs))),
        unseen=tuple(unseen),
    )


def _unserved(api: Api, kinds: Iterable[Kind]) -> Iterator[tuple[Kind, list[str]]]:
    """Yield each kind that the cluster does not serve, with the versions in which it serves the kind's group."""
    for api_version, kind in kinds:
        try:
            api.require_kind(api_version, kind)
        except NotServedError:
            yield (api_version, kind), api.versions(api_version.rpartition("/")[0])


def _listed(
    api: Api, unseen: list[Unseen], what: str, api_version: str, kind: str, namespace: str, **selectors: str
) -> tuple[Manifest, ...] | None:
    found = _seen(unseen, what, lambda: api.list_all(api_version, kind, namespace, **selectors))
    return None if found is None else tuple(found)


def _definition(api: Api, unseen: list[Unseen], served: Iterable[Kind]) -> Manifest | None:
    """Look at the definition of our own kind, where the plan has an object of it."""
    if all(kind != DEPLOYMENT_KIND for _, kind in served):
        return None
    return _seen(unseen, str(DEFINITION), lambda: api.get(DEFINITION))


def _named(api: Api, unseen: list[Unseen], named: Iterable[Named]) -> Iterator[tuple[Named, Manifest | None]]:
    """Yield each object with what was found of it; one whose kind nobody serves is not there either."""
    for each in named:
        before = len(unseen)
        found = _seen(unseen, str(each), lambda each=each: _find(api, each))  # type: ignore[misc]
        if len(unseen) == before:
            yield each, found


def _find(api: Api, named: Named) -> Manifest | None:
    """Look for an object in whatever version its group is served."""
    versions = api.versions(named.group) if named.group else ["v1"]
    for version in versions:
        try:
            return _get(api, "/".join(filter(None, (named.group, version))), named.kind, named.namespace, named.name)
        except NotServedError:
            continue
    return None


def _denied(api: Api, kinds: Iterable[Kind], namespace: str) -> Iterator[Denied]:
    questions = [(verb, kind) for kind in kinds for verb in VERBS]
    answers = _at_once(lambda question: api.may(question[0], *question[1], namespace), questions)
    lacking: dict[Kind, list[str]] = {}
    for (verb, kind), may in zip(questions, answers, strict=True):
        if not may:
            lacking.setdefault(kind, []).append(verb)
    for (_, name), verbs in lacking.items():
        yield Denied(name, "" if name == "Namespace" else namespace, tuple(verbs))


def _refused(api: Api, objects: Iterable[Manifest]) -> Iterator[Refused]:
    """Yield what a preview of the whole plan would hear."""

    def foresee(manifest: Manifest) -> Refused | None:
        try:
            foresee_create(api, manifest)
        except UnreachableError:
            raise
        except ProviderError as error:
            return Refused(str(Reference.of(manifest)), error)
        return None

    yield from filter(None, _at_once(foresee, objects))


def _takes_pods(namespace: Manifest | None, needs: Needs) -> bool:
    """Return whether a pod that is tried there now is judged as the plan's pods will be.

    It is not in a namespace that comes or goes, nor in one whose Pod Security labels the plan is about to change.
    """
    if namespace is None or is_ending(namespace):
        return False
    ours = next((each for each in needs.objects if each["kind"] == "Namespace"), namespace)
    return _security(ours) == _security(namespace)


def _security(namespace: Manifest) -> dict[str, str]:
    labels = namespace["metadata"].get("labels") or {}
    return {key: value for key, value in labels.items() if key.startswith(SECURITY)}


def _refused_pods(api: Api, needs: Needs, *, takes_pods: bool) -> Iterator[Refused]:
    one_of_each = {each.component: each for each in reversed(needs.pod_sets)}
    namespace = needs.namespace if takes_pods else DEFAULT_NAMESPACE
    for component, pod_set in sorted(one_of_each.items()):
        try:
            api.apply(pod_of(pod_set.template, namespace), force=False, dry_run=True)
        except RefusedError as error:
            if takes_pods or error.is_invalid:
                yield Refused(component, error)


def _get(api: Api, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
    return api.get(Reference(api_version, kind, namespace, name))


def _seen(unseen: list[Unseen], what: str, look: Callable[[], Answer]) -> Answer | None:
    """Return what `look` finds; None, and an entry in `unseen`, for what the user may not look at."""
    try:
        return look()
    except RefusedError as error:
        if not error.is_about_rights:
            raise
        unseen.append(Unseen(what, error.sentence))
        return None


def _at_once(ask: Callable[[Asked], Answer], questions: Iterable[Asked]) -> list[Answer]:
    """Ask many questions at a time; return the answers in their order. Raise what the first that fails raises."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(ask, questions))

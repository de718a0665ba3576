"""Reads the facts about a cluster that a plan needs. It stores nothing: it lists, asks, and applies in dry runs.

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
from stacks.doctor.facts import ClusterFacts, MissingRight, ReadFailure, Refusal
from stacks.doctor.needs import Needs, RequiredObject
from stacks.kube.api import DEFAULT_NAMESPACE, Api
from stacks.kube.errors import NotServedError, ProviderError, RefusedError, UnreachableError
from stacks.kube.lifecycle import foresee_create
from stacks.kube.manifest import Manifest, Reference, is_ending
from stacks.kube.pods import make_pod

__all__ = ["read_facts"]

VERBS = ("get", "create", "patch", "delete")  # those of the provider
THREADS = 8  # requests at a time
SECURITY = "pod-security.kubernetes.io/"  # labels of a namespace
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"  # pods that have ended hold nothing

Kind = tuple[str, str]  # apiVersion, kind
Question = TypeVar("Question")
Answer = TypeVar("Answer")


def read_facts(api: Api, needs: Needs) -> ClusterFacts:
    """Read all facts about a cluster that the findings about `needs` depend on.

    Raises ProviderError if the cluster does not answer, or refuses for a reason other than missing rights.
    """
    api.require_answer()
    failures: list[ReadFailure] = []
    namespace = _try_read(failures, "the namespace", lambda: _get(api, "v1", "Namespace", "", needs.namespace))
    unserved = dict(_find_unserved_kinds(api, needs.kinds))
    served = [kind for kind in needs.kinds if kind not in unserved]
    objects = [each for each in needs.objects if (each["apiVersion"], each["kind"]) in served]
    if namespace is not None and is_ending(namespace):
        objects = []  # the server would refuse each object for that reason alone
    return ClusterFacts(
        namespace=namespace,
        nodes=_try_list(api, failures, "nodes", "v1", "Node", ""),
        pods=_try_list(api, failures, "pods", "v1", "Pod", "", fieldSelector=RUNNING),
        quotas=_try_list(api, failures, "quotas", "v1", "ResourceQuota", needs.namespace),
        storage_classes=_try_list(api, failures, "storage classes", "storage.k8s.io/v1", "StorageClass", ""),
        definition=_read_definition(api, failures, served),
        required_objects=dict(_find_required(api, failures, needs.required_objects)),
        unserved_kinds=unserved,
        missing_rights=tuple(_find_missing_rights(api, served, needs.namespace)),
        refusals=tuple(_find_refusals(api, objects)),
        pod_refusals=tuple(_find_pod_refusals(api, needs, takes_pods=_takes_pods(namespace, needs))),
        read_failures=tuple(failures),
    )


def _find_unserved_kinds(api: Api, kinds: Iterable[Kind]) -> Iterator[tuple[Kind, list[str]]]:
    """Yield (kind, versions) for each kind that the cluster does not serve.

    `versions` are the versions of the kind's API group that the cluster does serve.
    """
    for api_version, kind in kinds:
        try:
            api.require_kind(api_version, kind)
        except NotServedError:
            yield (api_version, kind), api.versions(api_version.rpartition("/")[0])


def _try_list(
    api: Api, failures: list[ReadFailure], what: str, api_version: str, kind: str, namespace: str, **selectors: str
) -> tuple[Manifest, ...] | None:
    found = _try_read(failures, what, lambda: api.list_all(api_version, kind, namespace, **selectors))
    return None if found is None else tuple(found)


def _read_definition(api: Api, failures: list[ReadFailure], served: Iterable[Kind]) -> Manifest | None:
    """Return the CRD of TidemillDeployment; None if the plan has no such object, or if the CRD cannot be read."""
    if all(kind != DEPLOYMENT_KIND for _, kind in served):
        return None
    return _try_read(failures, str(DEFINITION), lambda: api.get(DEFINITION))


def _find_required(
    api: Api, failures: list[ReadFailure], required: Iterable[RequiredObject]
) -> Iterator[tuple[RequiredObject, Manifest | None]]:
    """Yield (required object, its live state) for each required object that may be read.

    The state is None if the object or its kind does not exist.
    """
    for each in required:
        before = len(failures)
        found = _try_read(failures, str(each), lambda each=each: _get_required(api, each))  # type: ignore[misc]
        if len(failures) == before:
            yield each, found


def _get_required(api: Api, required: RequiredObject) -> Manifest | None:
    """Return a required object in any version of its group that the cluster serves; None if it does not exist."""
    versions = api.versions(required.group) if required.group else ["v1"]
    for version in versions:
        try:
            return _get(
                api, "/".join(filter(None, (required.group, version))), required.kind, required.namespace, required.name
            )
        except NotServedError:
            continue
    return None


def _find_missing_rights(api: Api, kinds: Iterable[Kind], namespace: str) -> Iterator[MissingRight]:
    questions = [(verb, kind) for kind in kinds for verb in VERBS]
    answers = _run_concurrently(lambda question: api.may(question[0], *question[1], namespace), questions)
    lacking: dict[Kind, list[str]] = {}
    for (verb, kind), may in zip(questions, answers, strict=True):
        if not may:
            lacking.setdefault(kind, []).append(verb)
    for (_, name), verbs in lacking.items():
        yield MissingRight(name, "" if name == "Namespace" else namespace, tuple(verbs))


def _find_refusals(api: Api, objects: Iterable[Manifest]) -> Iterator[Refusal]:
    """Yield a refusal for each object that another tool owns, or that the API server rejects in a dry run."""

    def foresee(manifest: Manifest) -> Refusal | None:
        try:
            foresee_create(api, manifest)
        except UnreachableError:
            raise
        except ProviderError as error:
            return Refusal(str(Reference.from_manifest(manifest)), error)
        return None

    yield from filter(None, _run_concurrently(foresee, objects))


def _takes_pods(namespace: Manifest | None, needs: Needs) -> bool:
    """Return whether admission already treats a dry-run pod in the plan's namespace as it will treat the plan's pods.

    Admission cannot do so yet if the namespace does not exist or is being deleted, or if the plan changes the
    namespace's Pod Security labels.
    """
    if namespace is None or is_ending(namespace):
        return False
    ours = next((each for each in needs.objects if each["kind"] == "Namespace"), namespace)
    return _security_labels(ours) == _security_labels(namespace)


def _security_labels(namespace: Manifest) -> dict[str, str]:
    labels = namespace["metadata"].get("labels") or {}
    return {key: value for key, value in labels.items() if key.startswith(SECURITY)}


def _find_pod_refusals(api: Api, needs: Needs, *, takes_pods: bool) -> Iterator[Refusal]:
    one_of_each = {each.component: each for each in reversed(needs.pod_sets)}
    namespace = needs.namespace if takes_pods else DEFAULT_NAMESPACE
    for component, pod_set in sorted(one_of_each.items()):
        try:
            api.apply(make_pod(pod_set.template, namespace), force=False, dry_run=True)
        except RefusedError as error:
            if takes_pods or error.is_invalid:
                yield Refusal(component, error)


def _get(api: Api, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
    return api.get(Reference(api_version, kind, namespace, name))


def _try_read(failures: list[ReadFailure], what: str, look: Callable[[], Answer]) -> Answer | None:
    """Return the result of `look`. If the user lacks the right, add `what` to `failures` and return None."""
    try:
        return look()
    except RefusedError as error:
        if not error.is_about_rights:
            raise
        failures.append(ReadFailure(what, error.sentence))
        return None


def _run_concurrently(ask: Callable[[Question], Answer], questions: Iterable[Question]) -> list[Answer]:
    """Call `ask` with each question, several at a time. Return the answers in order, or raise the first error."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(ask, questions))

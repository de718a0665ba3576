"""What to print when a cluster did not do what a test waited for."""

from collections.abc import Iterator

import urllib3
from kubernetes import client

__all__ = ["diagnose"]

NUM_EVENTS = 20
LOG_TAIL_LINES = 15


def diagnose(api: client.ApiClient) -> str:
    """The pods that are not ready, and the last warnings; or that the API server does not say."""
    try:
        return f"{_describe_pods(api)}\n{_describe_warnings(api)}"
    except (urllib3.exceptions.HTTPError, client.ApiException) as error:
        return f"--- the API server does not say how its pods are: {error}"


def _describe_pods(api: client.ApiClient) -> str:
    """Of each that is not ready: its conditions, its containers' states and their last words."""
    core = client.CoreV1Api(api)
    pods = [each for each in core.list_pod_for_all_namespaces().items if not _is_ready(each)]
    return "\n".join(["--- pods that are not ready:", *(line for pod in pods for line in _describe(core, pod))])


def _describe_warnings(api: client.ApiClient) -> str:
    """The last events of type Warning."""
    events = client.CoreV1Api(api).list_event_for_all_namespaces(field_selector="type=Warning").items
    events.sort(key=lambda each: str(each.last_timestamp or each.event_time))
    lines = (f"{each.involved_object.name}: {each.reason}: {each.message}" for each in events[-NUM_EVENTS:])
    return "\n".join(["--- last warnings:", *lines])


def _is_ready(pod: client.V1Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or [])


def _describe(core: client.CoreV1Api, pod: client.V1Pod) -> Iterator[str]:
    name, namespace = pod.metadata.name, pod.metadata.namespace
    leaving = ", being deleted" if pod.metadata.deletion_timestamp else ""
    yield f"{namespace}/{name} on {pod.spec.node_name}: {pod.status.phase}{leaving}"
    for each in pod.status.conditions or []:
        if each.status != "True":
            yield f"  not {each.type}: {each.reason} {each.message or ''}"
    for each in pod.status.container_statuses or []:
        yield f"  container {each.name}: {each.state.waiting or each.state.terminated or 'running'}"
        yield from (f"    {line}" for line in _last_words(core, name, namespace, each.name))


def _last_words(core: client.CoreV1Api, pod: str, namespace: str, container: str) -> list[str]:
    try:
        text = core.read_namespaced_pod_log(
            pod, namespace, container=container, tail_lines=LOG_TAIL_LINES, _request_timeout=5
        )
    except client.ApiException as error:
        return [f"no log: {error.reason}"]
    return (text or "").splitlines()  # none of a pod that is on no node

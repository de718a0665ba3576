"""Explain why an object is not ready, from its pods, their nodes and its events.

Pure: `waiting.py` looks the objects up. A reason that many pods share is given once, naming one of them.
"""

import re
from collections.abc import Iterator, Sequence, Set
from typing import Any

from stacks.kube.manifest import Manifest, find_condition

__all__ = ["cannot_start", "make_pod", "pod_selector", "reasons", "template_place", "unready_nodes"]

LWS_NAME_LABEL = "leaderworkerset.sigs.k8s.io/name"
PULL_REASONS = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
BACKING_OFF = re.compile(
    r'^Back-off pulling image "[^"]*": \w+: '
)  # how the kubelet begins its message between two pulls
TRIED_POD = "tidemill-doctor"  # the name of pods in dry runs; no pod of a plan has it
MAX_WORDS = 400  # characters of a container's last line
STARTING = {"ContainerCreating", "PodInitializing"}


def pod_selector(live: Manifest) -> str | None:
    """Return the label selector of a workload's pods; None for a kind that has no pods of its own."""
    if live["kind"] == "LeaderWorkerSet":
        return f"{LWS_NAME_LABEL}={live['metadata']['name']}"
    labels = ((live.get("spec") or {}).get("selector") or {}).get("matchLabels")
    return ",".join(f"{key}={value}" for key, value in labels.items()) if isinstance(labels, dict) else None


def template_place(workload: Manifest) -> tuple[str, ...] | None:
    """Return the keys that lead to the pod template in an object; None for kinds without pods."""
    for place in (("spec", "leaderWorkerTemplate", "workerTemplate"), ("spec", "template")):
        found: Any = workload
        for key in place:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict) and "containers" in (found.get("spec") or {}):
            return place
    return None


def make_pod(template: Manifest, namespace: str) -> Manifest:
    """Return the pod that a controller would make from `template`, but with the service account `default`.

    The plan's own service account may not exist yet.
    """
    metadata = (template.get("metadata") or {}) | {"name": TRIED_POD, "namespace": namespace}
    spec = template["spec"] | {"serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def unready_nodes(nodes: Sequence[Manifest]) -> set[str]:
    """Return the names of the nodes whose condition Ready is not true."""
    return {each["metadata"]["name"] for each in nodes if not _is_true(each, "Ready")}


def reasons(live: Manifest, pods: Sequence[Manifest], down: Set[str], events: Sequence[Manifest]) -> list[str]:
    """Return the reasons why `live` is not ready, found in its `pods` or, if the pods show none, in its `events`.

    `down` has the names of unready nodes.
    """
    pods_by_reason: dict[str, list[str]] = {}
    for pod in pods:
        for reason in _pod_reasons(pod, down):
            pods_by_reason.setdefault(reason, []).append(pod["metadata"]["name"])
    found = [f"{reason} ({_name_pods(names)})" for reason, names in pods_by_reason.items()]
    return found or list(_object_reasons(live, events))


def cannot_start(pod: Manifest) -> bool:
    """Return whether a pod needs help to start: it lacks an image or a node, or a container keeps crashing."""
    waiting = [(each.get("state") or {}).get("waiting") or {} for each in _containers(pod)]
    is_stuck = any(each.get("reason") in PULL_REASONS | {"CrashLoopBackOff"} for each in waiting)
    return is_stuck or find_condition(pod, "PodScheduled").get("status") == "False"


def _containers(pod: Manifest) -> list[dict[str, Any]]:
    """Return the statuses of a pod's containers, init containers first."""
    status = pod.get("status") or {}
    return (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])


def _pod_reasons(pod: Manifest, down: Set[str]) -> Iterator[str]:
    node = pod["spec"].get("nodeName", "")
    if node in down:
        yield f"node {node} is not ready"
    elif pod["metadata"].get("deletionTimestamp"):
        yield "being deleted"
    if (scheduled := find_condition(pod, "PodScheduled")) and scheduled["status"] == "False":
        yield f"no node for it: {_line(scheduled.get('message') or scheduled.get('reason') or 'unknown')}"
    elif not node:
        yield "not yet seen by the scheduler"
    for container in _containers(pod):
        yield from _container_reasons(container)


def _container_reasons(container: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why a container keeps its pod from being ready: it waits, has crashed, or is not ready yet."""
    name, state = container["name"], container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    last = ended or (container.get("lastState") or {}).get("terminated") or {}
    reason = waiting.get("reason") or ""
    if reason in PULL_REASONS:
        said = BACKING_OFF.sub("", _line(waiting.get("message") or reason))
        advice = "correct kubernetes.image in the spec, or load it on the nodes"
        yield f"image {container['image']} cannot be had ({said}); {advice}"
    elif (reason == "CrashLoopBackOff" or ended) and last.get("exitCode"):
        cause = f", {last['reason']}" if last.get("reason") not in (None, "Error") else ""
        said = _termination_line(last.get("message") or "")
        yield f"container {name} ended with exit status {last['exitCode']}{cause}{said}; read `kubectl logs --previous`"
    elif reason and reason not in STARTING:
        yield f"container {name} waits: {_line(waiting.get('message') or reason)}"
    elif "running" in state and not container.get("ready"):
        yield f"container {name} runs and is not ready yet"


def _object_reasons(live: Manifest, events: Sequence[Manifest]) -> Iterator[str]:
    """Yield the reason why a workload has no pods, from its status or its latest event."""
    if (failure := find_condition(live, "ReplicaFailure")) and failure["status"] == "True":
        yield _line(failure.get("message") or failure.get("reason") or "its pods cannot be created")
    elif events:
        latest = max(events, key=_time)
        yield f"{latest.get('reason') or 'Warning'}: {_line(latest.get('message') or latest.get('note') or '')}"
    elif not live.get("status"):
        yield f"nothing has acted on it; check that the controller of {live['kind']}s runs"


def _time(event: Manifest) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next(filter(None, times), "")


def _is_true(live: Manifest, kind: str) -> bool:
    return find_condition(live, kind).get("status") == "True"


def _name_pods(names: Sequence[str]) -> str:
    first, more = min(names), len(names) - 1
    return f"pod {first} and {more} more" if more else f"pod {first}"


def _termination_line(message: str) -> str:
    """Return the last line of a container's termination message, as ` (LINE)`; empty if the message is empty."""
    lines = [line for line in map(_line, message.splitlines()) if line]
    return f" ({lines[-1][:MAX_WORDS]})" if lines else ""


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")

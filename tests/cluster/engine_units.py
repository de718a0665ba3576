"""Units of other engines on real nodes: what their tests share.

No node here has a GPU, and no image holds an engine. So the nodes say that they have GPUs, and overlays replace images
and commands by this machine's Python with the engine's packages mounted. Everything else is what `render` writes.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from kubernetes import client

from planner.manifests.render import KUSTOMIZATION, render_files
from planner.plan.plan import Plan
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.kube.lifecycle import delete, delete_all
from stacks.kube.manifest import Reference
from stacks.kube.readiness import missing
from stacks.kube.waiting import Patience
from tests.cluster.cluster import Cluster

__all__ = ["gpus_offered", "is_ready", "pods_of", "router_pod", "units_deployed"]

GPU = "nvidia.com/gpu"
READY_S, GONE_S = 600, 180


@contextmanager
def gpus_offered(cluster: Cluster, names: Sequence[str]) -> Iterator[client.CoreV1Api]:
    """Let these nodes say that they have eight GPUs; a kubelet keeps what it does not manage."""
    api = client.CoreV1Api(cluster.api)
    _offer_gpus(api, names, "8")
    yield api
    _offer_gpus(api, names, None)


def router_pod(volumes: Sequence[Mapping[str, str]], **container: Any) -> dict[str, Any]:
    """Return the overlay of a router's pod: these volumes of a spec, and these fields of its container."""
    mounts = [{"name": f"host-{number}", "mountPath": each["mount_path"]} for number, each in enumerate(volumes)]
    host_paths = [
        {"name": f"host-{number}", "hostPath": {"path": each["host_path"]}} for number, each in enumerate(volumes)
    ]
    return {"containers": [{"name": "router", "volumeMounts": mounts} | container], "volumes": host_paths}


@contextmanager
def units_deployed(cluster: Cluster, plan: Plan) -> Iterator[Api]:
    """Apply what is rendered, and wait until units and router are ready. Afterwards everything is gone."""
    api = Api(Connection(cluster.api))
    manifests = [yaml.safe_load(text) for name, text in render_files(plan).items() if name != KUSTOMIZATION]
    for each in manifests:
        api.apply(each, force=False)
    try:
        cluster.wait_until(
            lambda: not [each for each in manifests if missing(api.get(Reference.from_manifest(each)))],
            "all is ready",
            READY_S,
        )
        yield api
    finally:
        patience = Patience(GONE_S, threading.Event(), lambda text: None)
        (namespace,) = (each for each in manifests if each["kind"] == "Namespace")
        delete_all(api, [each for each in manifests if each is not namespace], patience)
        delete(api, namespace, patience)  # last: a namespace with pods is looked at again after half their grace period


def pods_of(core: client.CoreV1Api, namespace: str, unit: str) -> dict[str, Any]:
    """Return pod's name -> pod, of those that are not on their way out."""
    found = core.list_namespaced_pod(namespace, label_selector=f"tidemill.dev/unit={unit}").items
    return {each.metadata.name: each for each in found if each.metadata.deletion_timestamp is None}


def is_ready(pod: Any) -> bool:
    """Return whether the kubelet holds the pod for ready."""
    return any((each.type, each.status) == ("Ready", "True") for each in pod.status.conditions or [])


def _offer_gpus(api: client.CoreV1Api, names: Sequence[str], number: str | None) -> None:
    for name in names:
        api.patch_node_status(name, {"status": {"capacity": {GPU: number}, "allocatable": {GPU: number}}})

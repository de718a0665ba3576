"""The demo's day in a cluster, played in minutes: its controller follows it, and what becomes of it is recorded."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client

from planner.facts.day import hh_mm
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import RESOURCES, Deployed, new_stack
from tests.stacks.controller.day_spec import write_day

__all__ = ["NAME", "Look", "clock_shows", "day_deployed", "deployment_of", "hh_mm_in", "look", "looks_until"]

NAME = "demo-day"
POLL_S = 0.5


@dataclass(frozen=True)
class Look:
    """A deployment's status, and the units that have pods."""

    status: dict[str, Any]
    running: tuple[str, ...]

    @property
    def words(self) -> str:
        """What a person would see."""
        return " | ".join(str(self.status.get(key, "")) for key in ("state", "units", "why"))


def day_deployed(executable: Path, folder: Path, cluster: Cluster, namespace: str, /, **changes: Any) -> Deployed:
    """A stack of the demo's day, not up yet, with these sections of its spec changed."""
    path = write_day(
        folder,
        namespace=namespace,
        image=cluster.image,
        volumes=[dict(volume) for volume in cluster.volumes],
        resources=RESOURCES,
        ready_timeout="10min",
        overlay={"objects": [{"kind": "Deployment", "name": f"{NAME}-controller", "patch": _with_mounts(cluster)}]},
    )
    made = Deployed(cluster, new_stack(executable, folder, cluster.kubeconfig, path), path, namespace, NAME)
    made.change_spec(lambda spec: [spec.setdefault(section, {}).update(change) for section, change in changes.items()])
    return made


def _with_mounts(cluster: Cluster) -> dict[str, Any]:
    """What makes the controller's pod one of this machine's Python, as `volumes` does for gateway and units."""
    volumes = list(enumerate(cluster.volumes))
    mounts = [{"name": f"host-{number}", "mountPath": each["mount_path"], "readOnly": True} for number, each in volumes]
    container = {"name": "controller", "volumeMounts": mounts}
    host_paths = [{"name": f"host-{number}", "hostPath": {"path": each["host_path"]}} for number, each in volumes]
    return {"spec": {"template": {"spec": {"containers": [container], "volumes": host_paths}}}}


def hh_mm_in(minutes: float) -> str:
    """What clocks in UTC show so many minutes from now."""
    return clock_shows(time.time() + 60 * minutes)


def clock_shows(instant: float) -> str:
    """What clocks in UTC show at a time of time.time()."""
    then = datetime.fromtimestamp(instant, UTC)
    return hh_mm(then.hour * 60 + then.minute)


def deployment_of(deployed: Deployed) -> dict[str, Any]:
    """Its TidemillDeployment, as it is."""
    objects = client.CustomObjectsApi(deployed.cluster.api)
    live: dict[str, Any] = objects.get_namespaced_custom_object(
        "tidemill.dev", "v1alpha1", deployed.namespace, "deployments", NAME
    )
    return live


def look(deployed: Deployed) -> Look:
    """One look."""
    live = deployment_of(deployed)
    pods = client.CoreV1Api(deployed.cluster.api).list_namespaced_pod(
        deployed.namespace, label_selector="tidemill.dev/unit"
    )
    running = sorted({pod.metadata.labels["tidemill.dev/unit"] for pod in pods.items})
    return Look(live.get("status", {}), tuple(running))


def looks_until(
    deployed: Deployed, is_over: Callable[[Look], bool], timeout_s: float
) -> list[tuple[float, Look]]:  # times of time.time()
    """Look until `is_over`; each different look once, with its time."""
    seen: list[tuple[float, Look]] = []
    deadline = time.monotonic() + timeout_s
    while not seen or not is_over(seen[-1][1]):
        assert time.monotonic() < deadline, [(round(at), each.words, each.running) for at, each in seen]
        now = look(deployed)
        if not seen or (now.words, now.running) != (seen[-1][1].words, seen[-1][1].running):
            seen.append((time.time(), now))
        time.sleep(POLL_S)
    return seen

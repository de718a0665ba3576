"""What the pods of units, gateway and controller have in common: the user's volumes, CPUs and memory."""

from collections.abc import Mapping
from typing import Any

from planner.spec.kubernetes import KubernetesSpec, PodResources

__all__ = ["memory", "mounts_of", "requests_of", "volumes_of"]

Variables = dict[str, Any]


def requests_of(resources: PodResources | None, devices: Mapping[str, str] | None = None) -> Variables:
    """CPUs are requested without a limit, because a limit throttles; memory is both, because what is over it kills."""
    requests, limits = dict(devices or {}), dict(devices or {})
    if resources is not None:
        requests = {"cpu": _cpu(resources.cpus), "memory": memory(resources.memory)} | requests
        limits = {"memory": memory(resources.memory)} | limits
    return {"requests": requests, "limits": limits} if requests else {}


def volumes_of(kubernetes: KubernetesSpec) -> list[Variables]:
    """Return the spec's volumes, as a pod has them."""
    return [
        {"name": f"volume-{index}"} | volume.model_dump(include={"host_path", "claim"}, exclude_none=True)
        for index, volume in enumerate(kubernetes.volumes)
    ]


def mounts_of(kubernetes: KubernetesSpec) -> list[Variables]:
    """Return where a container sees them."""
    return [
        {"name": f"volume-{index}", "mount_path": volume.mount_path, "read_only": True}
        for index, volume in enumerate(kubernetes.volumes)
    ]


def memory(num_bytes: int) -> str:
    """`1536Mi`, `2Gi` or `1Ti`: as the API server itself would write it, so that nothing looks changed."""
    amount, units = round(num_bytes / 2**20), ["Mi", "Gi", "Ti"]
    while amount % 1024 == 0 and len(units) > 1:
        amount, units = amount // 1024, units[1:]
    return f"{amount}{units[0]}"


def _cpu(cpus: float) -> str:
    """`500m` or `2`: likewise."""
    millicpus = round(cpus * 1000)
    return f"{millicpus}m" if millicpus % 1000 else str(millicpus // 1000)

"""Template variables for parts that all pods have: volumes, tolerations, CPUs, memory and probes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.engines.container import Probe
from planner.estimate.loading import start_budget_s
from planner.facts.engines import OURS
from planner.spec.kubernetes import KubernetesSpec, PodResources
from planner.spec.pods import TolerationSpec, VolumeSpec

PROBE_PERIOD_S = 10  # Kubernetes' default
READY_PERIOD_S = 2  # as templates have it for readiness, which waits for the startup probe
PROBE_TIMEOUT_S = 5  # assumed: a busy interpreter answers that fast
ALIVE_S = 30  # Kubernetes' default: three periods

Variables = dict[str, Any]


def container_resources(
    resources: PodResources | None, devices: Mapping[str, str] | None = None, least_bytes: int | None = None
) -> Variables:
    """Return a container's `requests` and `limits`. Memory has a limit; CPUs have none, because a limit would throttle.

    Without memory in the spec, `least_bytes` are requested without a limit, because the maximum is unknown.
    """
    requests, limits = dict(devices or {}), dict(devices or {})
    if resources is not None:
        requests = {"cpu": _format_cpus(resources.cpus), "memory": format_memory(resources.memory)} | requests
        limits = {"memory": format_memory(resources.memory)} | limits
    elif least_bytes is not None:
        requests = {"memory": format_memory(least_bytes)} | requests
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}


def priority_of(kubernetes: KubernetesSpec) -> Variables:
    """Return the variable with the priority class of the gateway's and the controller's pods; empty without a class."""
    return {"priority_class": kubernetes.priority_class} if kubernetes.priority_class else {}


def tolerations_of(tolerations: Sequence[TolerationSpec]) -> list[Variables]:
    """Return the spec's tolerations in Kubernetes' form, as variables of a pod's template."""
    return [_toleration(each) for each in tolerations]


def volumes_of(volumes: Sequence[VolumeSpec]) -> list[Variables]:
    """Return the spec's volumes as variables of a pod's template."""
    return [
        {"name": f"volume-{index}", "read_only": True}
        | volume.model_dump(include={"host_path", "claim"}, exclude_none=True)
        for index, volume in enumerate(volumes)
    ]


def mounts_of(volumes: Sequence[VolumeSpec]) -> list[Variables]:
    """Return the mounts of the spec's volumes as variables of a container's template."""
    return [
        {"name": f"volume-{index}", "mount_path": volume.mount_path, "read_only": True}
        for index, volume in enumerate(volumes)
    ]


def probes_without_weights(kubernetes: KubernetesSpec, probe: Probe) -> Variables:
    """Return the probes of pods that load no weights. They restart a pod that does not start or no longer answers."""
    return {
        "started": probe_with_budget(probe, start_budget_s(kubernetes, OURS, 0), READY_PERIOD_S),
        "alive": probe_with_budget(probe, ALIVE_S),
    }


def probe_with_budget(probe: Probe, seconds: float, period_s: int = PROBE_PERIOD_S) -> Variables:
    """Return the variables of a probe that may fail for `seconds` before the container is restarted."""
    usual = {"period": period_s, "timeout": PROBE_TIMEOUT_S}
    return usual | probe_fields(probe) | {"failures": math.ceil(seconds / period_s)}


def probe_fields(probe: Probe) -> Variables:
    """Return the variables of a probe. A timeout is among them only if the engine sets one."""
    timeout = {} if probe.timeout_seconds is None else {"timeout": probe.timeout_seconds}
    return {"path": probe.path, "port": probe.port} | timeout


def format_memory(num_bytes: int) -> str:
    """Return bytes as the API server writes them, `1536Mi`, `2Gi` or `1Ti`, so that an object does not look changed."""
    amount, units = round(num_bytes / 2**20), ["Mi", "Gi", "Ti"]
    while amount % 1024 == 0 and len(units) > 1:
        amount, units = amount // 1024, units[1:]
    return f"{amount}{units[0]}"


def _toleration(toleration: TolerationSpec) -> Variables:
    fields = toleration.model_dump(exclude_none=True)
    seconds = fields.pop("seconds", None)
    return fields | ({"tolerationSeconds": seconds} if seconds is not None else {})


def _format_cpus(cpus: float) -> str:
    """Return CPUs as the API server writes them, `500m` or `2`."""
    millicpus = round(cpus * 1000)
    return f"{millicpus}m" if millicpus % 1000 else str(millicpus // 1000)

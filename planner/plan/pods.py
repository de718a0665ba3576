"""Derive what pods need beyond their launch files: the GPU resource, NVLink across nodes, and the weights they read.

Compiled and loaded plans derive these needs in the same way, from the spec and the memory plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.facts.catalog import GPUS
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.spec.cluster import OF_OWN_GPUS
from planner.spec.schema import Spec


@dataclass(frozen=True)
class PhasePods:
    """The device needs and weights of a phase's pods. A rank has one GPU."""

    gpu_resource: str | None  # that a container requests; None on CPUs
    nvlink_joins_nodes: bool  # one NVLink domain spans the unit's nodes
    weights_bytes: int | None  # read by one rank; None if memory is not planned


def pods_of(spec: Spec, weights_bytes: Mapping[Phase, int]) -> dict[Phase, PhasePods]:
    """Return the pod needs of each phase. `weights_bytes` are per rank, for phases with planned memory."""
    return {phase: PhasePods(*_devices(spec, phase), weights_bytes=weights_bytes.get(phase)) for phase in spec.phases}


def uses_multinode_nvlink(spec: Spec, unit: Unit) -> bool:
    """Return whether NVLink joins the unit's nodes: as the GPUs allow, or as `kubernetes.compute_domain` says."""
    wanted = spec.kubernetes.compute_domain
    return len(unit.nodes) > 1 and (_devices(spec, unit.phase)[1] if wanted is None else wanted)


def _devices(spec: Spec, phase: Phase) -> tuple[str | None, bool]:
    """Return (the Kubernetes resource of the phase's GPUs or None, whether NVLink joins the nodes of a unit)."""
    name, own = spec.gpu_name(phase), spec.cluster.gpu
    if isinstance(own, str) or own.name != name:
        gpu = GPUS.get(name)
        if gpu is None:  # only in an edited plan; its spec is checked later
            return None, False
        resource, domain = gpu.kubernetes_resource, gpu.nvlink_domain if gpu.nvlink_leaves_node else None
    else:
        resource, domain = OF_OWN_GPUS, own.nvlink_domain
    return resource and (spec.kubernetes.gpu_resource or resource), (domain or 0) > spec.cluster.gpus_per_node

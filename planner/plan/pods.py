"""What the pods of a phase's units need that no launch file tells: their devices, and the weights that they read.

A plan that was just compiled has it from its spec and its memory plan, and a plan that was read from its JSON from the
same places there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.facts.catalog import GPUS
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.spec.cluster import OF_OWN_GPUS
from planner.spec.schema import Spec

__all__ = ["PhasePods", "joins_nodes", "pods_of"]


@dataclass(frozen=True)
class PhasePods:
    """The sizes of each pod of a phase's units; a rank has one GPU."""

    gpu_resource: str | None  # what a container asks for; None on CPUs
    nvlink_joins_nodes: bool  # GPUs of a unit's nodes are in one NVLink domain
    weights_bytes: int | None  # that one rank reads; None where memory is not planned


def pods_of(spec: Spec, weights_bytes: Mapping[Phase, int]) -> dict[Phase, PhasePods]:
    """Return what the pods of each phase need; `weights_bytes` of one rank, of phases whose memory is planned."""
    return {phase: PhasePods(*_devices(spec, phase), weights_bytes=weights_bytes.get(phase)) for phase in spec.phases}


def joins_nodes(spec: Spec, unit: Unit) -> bool:
    """Return whether the GPUs of the unit's nodes share one NVLink, and the spec does not say that it is not used."""
    wanted = spec.kubernetes.compute_domain
    return len(unit.nodes) > 1 and (_devices(spec, unit.phase)[1] if wanted is None else wanted)


def _devices(spec: Spec, phase: Phase) -> tuple[str | None, bool]:
    """The resource of the phase's GPUs, and whether NVLink joins its nodes."""
    name, own = spec.gpu_name(phase), spec.cluster.gpu
    if isinstance(own, str) or own.name != name:
        gpu = GPUS.get(name)
        if gpu is None:  # in a plan that was edited, whose spec is looked at later
            return None, False
        resource, domain = gpu.kubernetes_resource, gpu.nvlink_domain if gpu.nvlink_leaves_node else None
    else:
        resource, domain = OF_OWN_GPUS, own.nvlink_domain
    return resource and (spec.kubernetes.gpu_resource or resource), (domain or 0) > spec.cluster.gpus_per_node

"""Template variables for the pods of the gateway and of units, from the spec and the plan.

A unit's pod has more than the gateway's: GPUs, RDMA devices, networks, shared memory, a copy of the checkpoint, probes
that allow time to load weights, and scheduling constraints.
"""

import math
import posixpath
from collections.abc import Mapping
from typing import Any

from planner.engines.container import Container, Probe
from planner.engines.edge import EDGE_COMMAND
from planner.estimate.loading import start_budget_s
from planner.facts import names
from planner.facts.engines import OURS
from planner.facts.exchange import EXCHANGES
from planner.layout.dispatch import is_normal
from planner.layout.memory import pod_host_bytes
from planner.layout.unit import Unit
from planner.manifests.nics import nic_variables
from planner.manifests.pod_parts import (
    PROBE_PERIOD_S,
    container_resources,
    format_memory,
    mounts_of,
    priority_of,
    probe_fields,
    probe_with_budget,
    probes_without_weights,
    tolerations_of,
    volumes_of,
)
from planner.plan.plan import Plan
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.pods import volume_of

# Source: github.com/llm-d/llm-d 3318b75d guides/wide-ep-lws/manifests/modelserver/base/decode.yaml: 32 MB for each GPU
# of a node, and scratch. Without a volume, a container has 64 MiB.
SHARED_MEMORY_BYTES = 2 * 2**30
# Seconds after the time to drain until a pod is killed; assumed: processes have ended by then. A rank that keeps KV on
# a disk writes for 3 s.
KILLED_AFTER_S = 10
# Seconds for which a terminating pod still takes new requests, because their senders learn later that it ends. Senders
# are the nodes' proxies in front of the gateway, and a router in front of the units.
LEAVE_S = 5  # assumed: on an idle node, proxies learn of it within a second

# A capability that only root's processes get.
# Source: github.com/kubernetes/enhancements 45116928 keps/sig-security/2763-ambient-capabilities/README.md
PINNED_MEMORY = "IPC_LOCK"

# Variable that says where to keep compiled kernels -> folder. These libraries compile kernels when first called.
# Sources: github.com/deepseek-ai/DeepGEMM 54e22612 README.md; github.com/deepseek-ai/DeepEP dd758caf README.md;
# knobs.py of triton 3.9.0; github.com/llm-d/llm-d 34716a27 guides/wide-ep-lws/modelserver/gpu/vllm-deepseek-r1-0528
KERNEL_CACHES = {
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "EP_JIT_CACHE_DIR": "deep_ep",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}

GATEWAY_LIVENESS = Probe("/health", "http", None)

OWN_FIELDS = {"NODE_NAME": "spec.nodeName", "POD_IP": "status.podIP"}  # variable -> field of the pod with its value

Variables = dict[str, Any]


def router_pod(plan: Plan, container: Container) -> Variables:
    """Return the template variables of the pod of another engine's router, which reads no checkpoint."""
    resources = container_resources(plan.kubernetes.resources.gateway)
    assert container.start_s is not None  # adapters set it
    variables = {
        "image": container.image,
        "command": list(container.command),
        "args": container.args,
        "env": _environment_entries(OWN_FIELDS, container.env),
        "ports": container.ports,
        "alive": probe_fields(container.liveness),
        "ready": probe_fields(container.readiness),
        "started": probe_with_budget(container.liveness, container.start_s),
        "progress_s": container.start_s + PROBE_PERIOD_S,
        "leave_s": LEAVE_S,
        "grace_s": LEAVE_S + _grace_s(plan),
        "volumes": [],
        "mounts": [],
        **priority_of(plan.kubernetes),
    }
    edge = {"edge": {"image": container.edge.image, "command": EDGE_COMMAND}} if container.edge is not None else {}
    return variables | edge | ({"resources": resources} if resources else {})


def gateway_pod(plan: Plan) -> Variables:
    """Return the template variables of the gateway's pod."""
    kubernetes, own, stage = plan.kubernetes, plan.kubernetes.gateway, plan.kubernetes.stage
    volumes = kubernetes.volumes if own.volumes is None else own.volumes
    mounts = mounts_of(volumes)
    if stage is not None and own.volumes is None:  # the gateway reads the original, mounted where ranks have the copy
        index = volume_of(stage.source, [volume.model_dump() for volume in kubernetes.volumes])
        assert index is not None  # a rule of the spec ensures it
        sub_path = posixpath.relpath(stage.source, kubernetes.volumes[index].mount_path)
        mount = {"name": f"volume-{index}", "mount_path": _checkpoint_path(plan), "read_only": True}
        mounts.append(mount if sub_path == "." else mount | {"sub_path": sub_path})
    variables: Variables = {
        "image": own.image or kubernetes.image,
        "drain_s": f"{plan.drain_s:g}",
        "leave_s": LEAVE_S,
        "grace_s": LEAVE_S + _grace_s(plan),
        "progress_s": math.ceil(_grace_s(plan) + kubernetes.ready_timeout),
        "volumes": volumes_of(volumes),
        "mounts": mounts,
        **probes_without_weights(kubernetes, GATEWAY_LIVENESS),
        **priority_of(kubernetes),
    }
    resources = container_resources(kubernetes.resources.gateway)
    return variables | ({"resources": resources} if resources else {})


def unit_pod(plan: Plan, unit: Unit, container: Container) -> Variables:
    """Return the template variables of each pod of `unit`, which runs `container`."""
    kubernetes = plan.kubernetes
    volumes, mounts = volumes_of(kubernetes.volumes), mounts_of(kubernetes.volumes)
    disk = plan.unit_document(unit)["limits"].get("disk")
    if plan.pods[unit.phase].gpu_resource:
        shared = {"medium": "Memory", "size": format_memory(SHARED_MEMORY_BYTES)}
        volumes.append({"name": "shared-memory", "memory": shared})
        mounts.append({"name": "shared-memory", "mount_path": names.SHARED_MEMORY})
    optional = {
        "resources": _unit_resources(plan, unit),
        "probes": _probes(plan, unit, container),
        # kubelets create folders on nodes that only root can write
        "is_root": bool(kubernetes.rdma or kubernetes.kernel_cache or (disk and not kubernetes.kv_cache_claim)),
        "capabilities": [PINNED_MEMORY] if kubernetes.rdma else None,
        "stage": _stage_variables(plan),
        "claims": [_compute_domain_claim(unit)] if has_compute_domain(plan, unit) else None,
        "shares_processes": plan.engine != OURS,
        "leave_s": None if plan.engine == OURS else LEAVE_S,
        "pod_annotations": {**container.annotations, **_networks(kubernetes)},
        **_scheduling_variables(plan),
    }
    if kubernetes.stage is not None:
        volumes.append({"name": "staged", "own_path": kubernetes.stage.host_path})
        mounts.append({"name": "staged", "mount_path": _checkpoint_path(plan), "read_only": True})
    if kubernetes.kernel_cache is not None:
        volumes.append({"name": "kernels", "own_path": kubernetes.kernel_cache})
        mounts.append({"name": "kernels", "mount_path": names.KERNEL_CACHE})
    if disk is not None:
        claim = kubernetes.kv_cache_claim
        volumes.append({"name": "kv"} | ({"claim": claim} if claim else {"own_path": disk["path"]}))
        mounts.append({"name": "kv", "mount_path": disk["path"]})
    return {
        "image": container.image or kubernetes.image,
        "volumes": volumes,
        "mounts": mounts,
        "command": list(container.command),
        "args": container.args,
        "env": _environment(plan, unit, container),
        "ports": _ports(plan, unit, container),
        "ready": probe_fields(container.readiness),
    } | {name: value for name, value in optional.items() if value}


def has_compute_domain(plan: Plan, unit: Unit) -> bool:
    """Return whether a unit gets a ComputeDomain, NVIDIA's object for NVLink between nodes.

    By default a unit of several nodes gets one if NVLink joins its nodes; the spec may decide otherwise.
    """
    wanted = plan.kubernetes.compute_domain
    joins = plan.pods[unit.phase].nvlink_joins_nodes if wanted is None else wanted
    return joins and len(unit.nodes) > 1


def security_needs(plan: Plan) -> list[str]:
    """Return words for what pods need that the Pod Security standard `restricted` forbids; empty if there is nothing.

    Source: github.com/kubernetes/kubernetes 003effe9 staging/src/k8s.io/pod-security-admission/policy,
    check_capabilities_baseline.go, check_hostPathVolumes.go and check_hostNamespaces.go: `baseline` already forbids
    all three.
    """
    kubernetes = plan.kubernetes
    needs = [f"{PINNED_MEMORY} for RDMA"] if kubernetes.rdma else []
    volumes = [*kubernetes.volumes, *(kubernetes.gateway.volumes or ())]
    keeps_kv = plan.spec.kv_cache.disk is not None and kubernetes.kv_cache_claim is None
    own_folders = kubernetes.stage or kubernetes.kernel_cache or keeps_kv
    if own_folders or any(volume.host_path for volume in volumes):
        needs.append("folders of the nodes")
    return needs + (["the network of the nodes"] if kubernetes.host_network else [])


def _unit_resources(plan: Plan, unit: Unit) -> Variables:
    """Return the requests and limits of a unit's container. Of devices it gets exactly as many as it requests."""
    kubernetes, needs = plan.kubernetes, plan.pods[unit.phase]
    devices = {needs.gpu_resource: str(unit.ranks_per_node)} if needs.gpu_resource else {}
    if kubernetes.rdma:
        devices[kubernetes.rdma.resource] = str(kubernetes.rdma.count)
    least_bytes = pod_host_bytes(plan.spec, unit.phase, unit.ranks_per_node)
    found = container_resources(kubernetes.resources.unit, devices, least_bytes)
    if has_compute_domain(plan, unit):
        found["claims"] = [_compute_domain_claim(unit)["name"]]
    return found


def _environment(plan: Plan, unit: Unit, container: Container) -> list[Variables]:
    """Return a unit's environment variables.

    Variables of the spec override variables with the same name from pod fields, the engine and NICs.
    """
    kubernetes, fields = plan.kubernetes, dict(OWN_FIELDS)
    values: dict[str, Any] = {**container.env}
    if kubernetes.unit_kind == "statefulset":  # what LeaderWorkerSet would set
        values["LWS_LEADER_ADDRESS"] = f"{unit.name}-0.{unit.name}.{kubernetes.namespace}"
        values["LWS_GROUP_SIZE"] = str(len(unit.nodes))
        fields["LWS_WORKER_INDEX"] = "metadata.labels['apps.kubernetes.io/pod-index']"
    if kubernetes.nics is not None:
        values |= nic_variables(kubernetes.nics, is_one_world=_is_one_world(plan, unit))
    if kubernetes.kernel_cache is not None:
        values |= {variable: f"{names.KERNEL_CACHE}/{folder}" for variable, folder in KERNEL_CACHES.items()}
    written = {**kubernetes.env, **plan.spec.phase(unit.phase).env}
    return _environment_entries({name: path for name, path in fields.items() if name not in written}, values | written)


def _is_one_world(plan: Plan, unit: Unit) -> bool:
    """Return whether all ranks of `unit` are in one NVSHMEM world."""
    if plan.engine == OURS:
        return not is_normal(unit.phase)
    version = plan.unit_document(unit)["engine"]["version"]
    return EXCHANGES[plan.engine][version][unit.phase].is_one_world


def _environment_entries(fields: Mapping[str, str], values: Mapping[str, Any]) -> list[Variables]:
    """Return environment variables for templates: `fields` of the pod, then `values`.

    The fields come first, because values may refer to them as `$(NAME)`.
    """
    return [{"name": name, "field": path} for name, path in fields.items()] + [
        {"name": name, "secret": value} if isinstance(value, dict) else {"name": name, "value": value}
        for name, value in values.items()
    ]


def _ports(plan: Plan, unit: Unit, container: Container) -> Mapping[str, int]:
    """Return name -> port of the container.

    If Prometheus monitors ranks, these include the metrics ports of all ranks.
    """
    if not plan.kubernetes.monitors or plan.engine != OURS:
        return container.ports
    first = container.ports["metrics"]
    others = {f"metrics-{rank}": first + rank for rank in range(1, unit.ranks_per_node)}
    return {**container.ports, **others}


def _probes(plan: Plan, unit: Unit, container: Container) -> Variables | None:
    """Return the probes by which Kubernetes restarts a pod that does not start, or that hangs.

    Return None if the size of the pod's weights is unknown.
    """
    weights = plan.pods[unit.phase].weights_bytes
    if weights is None:
        return None
    start_s = container.start_s or start_budget_s(plan.kubernetes, plan.engine, weights * unit.ranks_per_node)
    return {
        "started": probe_with_budget(container.liveness, start_s),
        "alive": probe_with_budget(container.liveness, plan.kubernetes.stall_timeout),
    }


def _grace_s(plan: Plan) -> int:
    """Return the seconds after which Kubernetes kills a terminating pod."""
    return math.ceil(plan.drain_s) + KILLED_AFTER_S


def _stage_variables(plan: Plan) -> Variables | None:
    """Return the variables for copying the checkpoint to the node before the container starts; None without a copy."""
    stage = plan.kubernetes.stage
    if stage is None:
        return None
    destination = _checkpoint_path(plan)
    mounts = [*mounts_of(plan.kubernetes.volumes), {"name": "staged", "mount_path": destination}]
    image = plan.kubernetes.tidemill_image or plan.kubernetes.image
    return {"image": image, "source": stage.source, "destination": destination, "mounts": mounts}


def _checkpoint_path(plan: Plan) -> str:
    """Return the path at which ranks read the checkpoint in their pods."""
    path = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]["checkpoint"]["uri"]
    assert isinstance(path, str)
    return path


def _scheduling_variables(plan: Plan) -> Variables:
    """Return the variables of units' pods for host network, tolerations, node selector, priority and grace period."""
    kubernetes = plan.kubernetes
    return {
        "host_network": kubernetes.host_network,
        "tolerations": [*tolerations_of(kubernetes.tolerations), *_tolerate_own_taint(kubernetes)],
        "node_selector": kubernetes.node_selector,
        "priority_class": kubernetes.priority_class,
        "grace_s": _grace_s(plan) if plan.engine == OURS else LEAVE_S + _grace_s(plan),
    }


def _tolerate_own_taint(kubernetes: KubernetesSpec) -> list[Variables]:
    """Return the toleration of the taint by which the controller takes back lent nodes; empty if no nodes are lent."""
    taint = {"key": names.RECLAIMED_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    return [taint] if kubernetes.lends_nodes else []


def _networks(kubernetes: KubernetesSpec) -> dict[str, str]:
    return {names.NETWORKS_ANNOTATION: ",".join(kubernetes.networks)} if kubernetes.networks else {}


def _compute_domain_claim(unit: Unit) -> Variables:
    """Return the claim by which a pod joins the unit's ComputeDomain."""
    return {"name": "compute-domain", "template": names.compute_domain_channel(unit.name)}

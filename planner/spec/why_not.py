"""Why tidemill has no such key or value, where that takes more than a list of what there is; and what to do instead.

What has no counterpart here, such as `gpu_memory_utilization`, or follows from our fields, such as
`data_parallel_size`, stays an unknown key with its reason in `WHY_NOT`.
"""

import re
from typing import Any

from planner.spec.container_resources import GPU_COUNTS, GPU_RESOURCES
from planner.spec.declared import place_of
from planner.spec.moved import MOVED
from planner.spec.other_names import plain_name

__all__ = ["is_not_planned_yet", "what_instead_of", "why_we_have_no"]

OTHER_CURRENCY = re.compile(r"cost\.(?!usd_)[a-z]{3}_per_(gpu|node)_hour")


def why_we_have_no(path: str) -> str | None:
    """Say why nothing here is called so, where that takes more than a list of what there is."""
    if OTHER_CURRENCY.fullmatch(path):
        return "the cost of GPUs is in US dollars, and cost.currency is for prices only"
    return NOT_YET.get(place_of(path)) or WHY_NOT.get(plain_name(path.rpartition(".")[2]))


def what_instead_of(path: str) -> str | None:
    """Say what to do instead of writing this key, where to leave it out would lose what was meant."""
    return "write usd_per_gpu_hour, in US dollars" if OTHER_CURRENCY.fullmatch(path) else INSTEAD.get(place_of(path))


def is_not_planned_yet(path: str, value: Any) -> bool:
    """Return whether the field at `path` will take `value` one day, so that no other value is what was meant."""
    return plain_name(str(value)).casefold() in NOT_YET_VALUES.get(path.rpartition(".")[2], ())


LENGTHS = ("input_len", "output_len", "input_length", "output_length", "prompt_len", "isl", "osl")
VOLUMES = ("kubernetes.volumes", "kubernetes.gateway.volumes")
SERVICE_TYPES = tuple(f"{place}.service_type" for place in ("gateway", "kubernetes", "kubernetes.gateway"))
INGRESSES = tuple(f"{place}.ingress" for place in ("gateway", "kubernetes", "kubernetes.gateway"))
NIC_COUNTS = ("nics", "num_nics", "nics_per_node")

_WINDOW = "a window lasts until the next one starts"
_DRAFTS = "draft_tokens of decode says how many tokens the model's MTP module drafts in a step"
_PULLED = "a node pulls only images that it lacks, so each build needs its own tag or digest"
_SCALED = "units are not scaled with load; a schedule sets their number by time of day, from traffic with windows: auto"
_LATENCY = "a service promises ttft_ms and tpot_ms, under slo"
_NICS = "tidemill does not count NICs: gpus_per_nic of a GPU of your own says how many GPUs share one"
_GPUS = "a unit has ep_size GPUs, one for each rank, and its pods ask for them by themselves"
_OF_UNITS = "only pods of units have variables of the spec, those of kubernetes.env"
_MOUNTED = "pods mount folders of their nodes, and claims"

_OVERLAID = "kubernetes.overlay says of rendered objects what no field does"
_LENGTHS = "traffic counts the tokens and the requests of a day, from which mean lengths follow"

# Place of a key -> why there is none.
NOT_YET = {
    "throughput": "the plan predicts it at operating_point",
    "kubernetes.hostPath": "a folder on the nodes is one of volumes, and mount_path says where pods find it",
    **dict.fromkeys((f"{place}.{key}" for place in ("cluster", "cluster.gpu") for key in NIC_COUNTS), _NICS),
    "PHASE.resources": _GPUS,
    **dict.fromkeys((f"PHASE.{key}" for key in GPU_COUNTS), _GPUS),
    **dict.fromkeys((f"kubernetes.resources.{key}" for key in GPU_RESOURCES), _GPUS),
    **dict.fromkeys((f"kubernetes.resources.unit.{key}" for key in GPU_RESOURCES), _GPUS),
    **dict.fromkeys((f"{place}.name" for place in VOLUMES), "a volume is known by its mount_path"),
    **dict.fromkeys((f"{place}.{key}" for place in VOLUMES for key in ("nfs", "csi")), _MOUNTED),
    **dict.fromkeys(("gateway.env", "kubernetes.gateway.env"), _OF_UNITS),
    "kubernetes.controller.env": _OF_UNITS,
    "kubernetes.controller.replicas": "one controller runs at a time, and Kubernetes starts it again when it ends",
    "cluster.gpu.fp4_tflops": "a GPU of your own has rates for FP8 and BF16 only, and FP4 is planned at the FP8 rate",
    **dict.fromkeys((f"traffic.{key}" for key in LENGTHS), _LENGTHS),
    **dict.fromkeys(MOVED, "it is in kubernetes.overlay, where it is written as Kubernetes writes it"),
    "kubernetes.service": _OVERLAID,
    "kubernetes.labels": _OVERLAID,
    **dict.fromkeys(SERVICE_TYPES, _OVERLAID),
    **dict.fromkeys(INGRESSES, "tidemill renders a Service for the gateway, and nothing in front of it"),
    "cluster.gpus": "gpus_per_node says how many GPUs each node has, and nodes how many nodes there are",
    "cluster.nodes.zone": "tidemill knows three places of a node: rack, leaf and power",
    "cost.usd_per_node_hour": "costs are per GPU hour: what a node costs, divided by its GPUs",
    "schedule.windows.end": _WINDOW,
    "schedule.windows.to": _WINDOW,
    "schedule.windows.until": _WINDOW,
    "schedule.windows.duration": _WINDOW,
}


_ENV = "{containers: [{name: gateway, env: [{name: ..., value: ...}]}]}"
_CONTROLLERS = "{containers: [{name: controller, env: [{name: ..., value: ...}]}]}"


_SHARED = "describe the GPU, as gpu: {name: ...}, and write gpus_per_nic below it: gpus_per_node / NICs per node"
_MOUNT = "write the claim that has it, or the host_path of its mount"
INSTEAD = {
    **{field: f"write kubernetes.{instead}" for field, instead in MOVED.items()},
    "kubernetes.service": "write for example"
    " kubernetes.overlay.objects: [{kind: Service, name: NAME-gateway, patch: {spec: {type: NodePort}}}]",
    **dict.fromkeys(
        SERVICE_TYPES,
        "write kubernetes.overlay.objects: [{kind: Service, name: NAME-gateway, patch: {spec: {type: LoadBalancer}}}],"
        " where NAME is the spec's name",
    ),
    **dict.fromkeys(
        INGRESSES, "create an Ingress of your own for the Service NAME-gateway, where NAME is the spec's name"
    ),
    "cluster.gpus": "write the GPUs of one node as gpus_per_node",
    "kubernetes.labels": "write them of each kind, "
    "for example kubernetes.overlay.objects: [{kind: Deployment, patch: {metadata: {labels: {team: chat}}}}]",
    "cluster.nodes.zone": "write rack, leaf or power, if the nodes of a zone share one",
    "cost.usd_per_node_hour": "write usd_per_gpu_hour, which is usd_per_node_hour / gpus_per_node",
    "schedule.windows.units": "write how many units of each phase, as prefill_units: ... and decode_units: ...",
    "cluster.rdma": "write kubernetes.rdma, for example {resource: rdma/hca, count: 8}",
    **dict.fromkeys((f"{place}.{key}" for place in VOLUMES for key in ("nfs", "csi")), _MOUNT),
    **dict.fromkeys(("gateway.env", "kubernetes.gateway.env"), f"write kubernetes.overlay.gateway_pod.spec: {_ENV}"),
    "kubernetes.controller.env": "write kubernetes.overlay.objects:"
    " [{kind: Deployment, name: NAME-controller, patch: {spec: {template: {spec: "
    f"{_CONTROLLERS}}}}}}}}}], where NAME is the spec's name",
    **dict.fromkeys((f"{place}.{key}" for place in ("cluster", "cluster.gpu") for key in NIC_COUNTS), _SHARED),
}

NOT_YET_VALUES = {
    "precision": (
        "int4",
        "awq",
        "gptq",
        "int8",
        "w8a8",
        "w8a8_int8",
    )
}

_DP = "dp_size is ep_size / attention_tp, since each rank or attention group serves its own requests"
_EP = "experts are always spread over all GPUs of a unit (ep_size)"
_MEMORY = "the plan computes each part of memory and gives the rest to KV"
_OVERLAP = "overlap turns it on: dual_batch in prefill, five_stage in decode"
_DISPATCH = "how tokens reach experts follows from the phase and its GPUs"
_LAYERS = "layers are not split over GPUs"
_EPLB = "expert maps are always balanced, over redundant_experts"

WHY_NOT = {
    # vLLM
    "data_parallel_size": _DP,
    "enable_expert_parallel": _EP,
    "gpu_memory_utilization": _MEMORY,
    "pipeline_parallel_size": _LAYERS,
    "enable_eplb": _EPLB,
    "enable_dbo": "overlap: dual_batch is what this flag turns on",
    "speculative_config": _DRAFTS,
    # SGLang
    "dp": _DP,
    "dp_size": _DP,
    "enable_dp_attention": _DP,
    "mem_fraction_static": _MEMORY,
    "pp_size": _LAYERS,
    "enable_two_batch_overlap": _OVERLAP,
    "two_batch_overlap": _OVERLAP,
    "tbo": _OVERLAP,
    "moe_a2a_backend": _DISPATCH,
    "deepep_mode": _DISPATCH,
    "disaggregation_mode": "the section says the phase: prefill, decode or mixed",
    "speculative_algorithm": _DRAFTS,
    "num_nextn_predict_layers": _DRAFTS,
    "enable_mtp": _DRAFTS,
    "mtp": _DRAFTS,
    # TensorRT-LLM
    "free_gpu_memory_fraction": _MEMORY,
    # What a service promises
    "ttft": _LATENCY,
    "ttft_ms": _LATENCY,
    "tpot": _LATENCY,
    "tpot_ms": _LATENCY,
    "itl": _LATENCY,
    # Kubernetes
    "min_units": _SCALED,
    "max_units": _SCALED,
    "min_replicas": _SCALED,
    "max_replicas": _SCALED,
    "minReplicas": _SCALED,
    "maxReplicas": _SCALED,
    "autoscaling": _SCALED,
    "affinity": "the plan names the nodes of each unit, and takes them from a list under cluster.nodes",
    "imagePullPolicy": _PULLED,
    "image_pull_policy": _PULLED,
    "volumeMounts": "each of volumes has a mount_path, and all pods mount all of them",
}

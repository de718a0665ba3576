"""What our fields are called elsewhere, for "did you mean": who writes a spec has flags of an engine at hand.

`OTHER_NAMES` mean the same number or word. What has no counterpart here, such as `gpu_memory_utilization`, or follows
from ours, such as `data_parallel_size`, stays an unknown key, with the reason in `WHY_NOT`; so do the sections that no
pass reads yet.

Sources: github.com/vllm-project/vllm vllm/engine/arg_utils.py; github.com/sgl-project/sglang
python/sglang/srt/server_args.py; Kubernetes' Node, Pod and Container.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["KUBERNETES_KEYS", "as_we_say", "said_by_object", "why_not_so", "why_we_have_no"]

KUBERNETES_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")  # of any object: a spec is none


def said_by_object(key: str, value: Any) -> Mapping[str, Any]:
    """What one of the keys of a Kubernetes object would be as fields of a spec: path -> value."""
    if key == "apiVersion":
        return {"version": 1}
    section = value if isinstance(value, dict) else {}
    if key == "metadata":
        meant = {"name": "name", "namespace": "kubernetes.namespace"}
        return {path: section[each] for each, path in meant.items() if each in section}
    return section if key == "spec" else {}


def as_we_say(key: str) -> str | None:
    """Our name of a field that is called `key` elsewhere, as a flag (`--max-num-seqs`) or as a key."""
    return OTHER_NAMES.get(_plain(key))


def why_we_have_no(path: str) -> str | None:
    """Why nothing here is called so, where that takes more than a list of what there is."""
    return NOT_YET.get(path) or WHY_NOT.get(_plain(path.rpartition(".")[2]))


def why_not_so(path: str, value: Any) -> str | None:
    """Why this value, which is to come, is none yet."""
    return NOT_YET.get(f"{path}: {value}")


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


# Keys and values of the spec that are to come.
NOT_YET = {
    "schedule: auto": "windows are not derived from traffic yet",
    "slo": "latencies are not planned yet",
    "traffic": "throughput is not planned yet, and windows are written by hand",
    "cost": "cost is not planned yet",
    "kubernetes.unit_kind": "a unit is a LeaderWorkerSet, and nothing else is rendered yet",
}

_DP = "dp_size is ep_size / attention_tp, each rank or attention group has requests of its own"
_EP = "experts are always spread over all GPUs of a unit (ep_size)"
_MEMORY = "memory is planned part by part, and KV gets what is left"
_OVERLAP = "overlap says it: dual_batch in prefill, five_stage in decode"
_LAYERS = "layers are not split over GPUs"
_EPLB = "expert maps are always balanced, over redundant_experts"

WHY_NOT = {
    # vLLM
    "data_parallel_size": _DP,
    "enable_expert_parallel": _EP,
    "gpu_memory_utilization": _MEMORY,
    "pipeline_parallel_size": _LAYERS,
    "enable_eplb": _EPLB,
    "enable_dbo": _OVERLAP,
    "kv_cache_dtype": "KV is kept in bf16 where precision is fp8",
    # SGLang
    "dp": _DP,
    "dp_size": _DP,
    "enable_dp_attention": _DP,
    "mem_fraction_static": _MEMORY,
    "pp_size": _LAYERS,
    "enable_two_batch_overlap": _OVERLAP,
}

OTHER_NAMES = {
    # vLLM
    "tensor_parallel_size": "attention_tp",
    "max_num_seqs": "max_requests",
    "max_model_len": "max_request_tokens",
    "max_num_batched_tokens": "max_batch_tokens",
    "num_redundant_experts": "redundant_experts",
    "dtype": "precision",
    "quantization": "precision",
    # SGLang
    "tp": "attention_tp",
    "tp_size": "attention_tp",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "ep_num_redundant_experts": "redundant_experts",
    "max_running_requests": "max_requests",
    "context_length": "max_request_tokens",
    "chunked_prefill_size": "max_batch_tokens",
    "max_total_tokens": "max_kv_tokens",
    "served_model_name": "name",
    "model_path": "checkpoint",
    "path": "checkpoint",
    # Kubernetes
    "replicas": "units",
    "unschedulable": "cordoned",
    "cpu": "cpus",
    "imagePullSecrets": "image_pull_secrets",
}

"""What our fields are called elsewhere, for "did you mean": who writes a spec has flags of an engine at hand.

Only names that mean the same number or word are here; `data_parallel_size` follows from ours and
`gpu_memory_utilization` has no counterpart, so that these stay unknown keys.

Sources: github.com/vllm-project/vllm vllm/engine/arg_utils.py; github.com/sgl-project/sglang
python/sglang/srt/server_args.py; Kubernetes' Node, Pod and Container.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["KUBERNETES_KEYS", "OTHER_NAMES", "said_by_object"]

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

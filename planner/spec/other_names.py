"""What our fields and values are called elsewhere: who writes a spec has flags of an engine at hand.

A name here means the same number or word as ours. Flags that mean something only together are in `engine_flags.py`,
and names that have no counterpart here in `why_not.py`.

Sources: github.com/vllm-project/vllm vllm/engine/arg_utils.py; github.com/sgl-project/sglang
python/sglang/srt/server_args.py; Kubernetes' Node, Pod and Container.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from planner.facts.terms import PHASES, Overlap, Phase

__all__ = [
    "OTHER_ENGINES",
    "OTHER_NAMES",
    "OVERLAP_OF_PHASE",
    "as_we_say",
    "plain_name",
    "qualifiers_of",
    "said_better",
    "unwrapped",
    "value_as_we_say",
]


def as_we_say(key: str, section: str = "") -> str | None:
    """Return our name of what is called `key` elsewhere, as a flag (`--max-num-seqs`) or as a key of `section`."""
    return NAMES_IN.get(section, {}).get(plain_name(key)) or OTHER_NAMES.get(plain_name(key))


def said_better(key: str, beside: Iterable[str], section: str) -> str | None:
    """Return the key beside `key` in `section` that says the same field better: vLLM's quantization, beside dtype."""
    ours, names = as_we_say(key, section), [*OTHER_NAMES, *NAMES_IN.get(section, ())]
    rivals = [each for each in beside if as_we_say(each, section) == ours] if ours else []
    best = max(rivals, key=lambda each: names.index(plain_name(each)), default=key)
    return None if best == key else best


def qualifiers_of(key: str) -> frozenset[str]:
    """Return the words that make another notion of a key: `min_units` is no misspelt `units`."""
    return QUALIFIERS.intersection(plain_name(key).casefold().split("_"))


def plain_name(key: str) -> str:
    """Return `key` as tables here have it, if it is a flag: `max_num_seqs` for `--max-num-seqs`."""
    return key.lstrip("-").replace("-", "_")


def value_as_we_say(path: str, value: Any) -> Any:
    """Return our word for what is called `value` elsewhere; `value` itself where it is none of these."""
    phase = next((each for each in PHASES if path == f"{each}.overlap"), None)
    is_on = value is True and phase == "decode"
    if phase and (is_on or plain_name(str(value)).casefold() in OVERLAP_WORDS):
        return OVERLAP_OF_PHASE[phase]
    return OTHER_VALUES.get(path.rpartition(".")[2], {}).get(plain_name(str(value)).casefold(), value)


def unwrapped(value: Any) -> Any:
    """Return what we write as a plain value of what Kubernetes writes as a mapping.

    `{path: ...}`, `{claimName: ...}`, `{name: ...}` alone, and of a taint `{key: ..., value: ..., effect: ...}`.
    """
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("key"), str) and isinstance(value.get("effect"), str):
        return f"{value['key']}{'=' if value.get('value') else ''}{value.get('value') or ''}:{value['effect']}"
    keys = ("name",) if value.keys() == {"name"} else ("path", "claimName")
    return next((value[key] for key in keys if isinstance(value.get(key), str)), value)


QUALIFIERS = frozenset(("min", "max", "minimum", "maximum", "initial", "target"))

# Two micro-batches hide little of a decode step, as W102 says. vLLM's flag has no other form in any phase.
OVERLAP_OF_PHASE: Mapping[Phase, Overlap] = {"prefill": "dual_batch", "decode": "five_stage", "mixed": "dual_batch"}
OVERLAP_WORDS = ("tbo", "two_batch", "two_batch_overlap")

# Values of the spec that are called otherwise elsewhere, such as torch's and vLLM's words for a dtype.
_DTYPES = {"float8": "fp8", "float8_e4m3": "fp8", "float8_e4m3fn": "fp8", "bfloat16": "bf16"}
OTHER_VALUES = {
    "precision": {
        **_DTYPES,
        "float32": "fp32",
        "float": "fp32",
        "nvfp4": "fp4",
        "modelopt_fp4": "fp4",
        "w4afp8": "w4a8",
    },
    "kv_precision": _DTYPES,
}

# Section -> names that mean a field of that section only. Sources: github.com/ai-dynamo/dynamo, DynamoGraphDeployment
# (backendFramework); price lists of tokens, where those of the input that no cache has are the input's.
_PRICES = {
    **dict.fromkeys(("input", "prompt", "input_cache_miss", "cache_miss"), "input_miss"),
    **dict.fromkeys(("cached_input", "input_cached", "input_cache_hit", "cache_hit"), "input_hit"),
    **dict.fromkeys(("completion", "generated"), "output"),
}
_RATES = dict.fromkeys(("usd", "usd_per_hour", "usd_per_gpu", "price", "rate"), "usd_per_gpu_hour")
_TOKENS = {
    **dict.fromkeys(("input", "prompt", "prompts", "prompt_tokens"), "input_tokens"),
    **dict.fromkeys(("output", "completion", "completion_tokens", "generated_tokens"), "output_tokens"),
    **dict.fromkeys(("hit_rate", "cache_hits", "prefix_hit_rate"), "cache_hit_rate"),
}
_SHARE = {"utilization": "utilisation"}
_LOAD = dict.fromkeys(("batch_size", "batch", "concurrency"), "requests")
NAMES_IN: Mapping[str, Mapping[str, str]] = {
    "cluster.nodes": dict.fromkeys(("gpu_count", "num_gpus", "gpus_per_node"), "gpus"),
    "kubernetes": {"ns": "namespace"},
    "": dict.fromkeys(("backend", "backend_framework", "backendFramework", "framework"), "engine"),
    "PHASE": dict.fromkeys(("workers", "num_workers"), "units"),
    "cluster.gpu": {"fp8": "fp8_tflops", "bf16": "bf16_tflops", "bandwidth": "memory_bandwidth"},
    "cost.prices": _PRICES,
    **dict.fromkeys(("cost", "cost.hours", "cost.supplies", "cost.supplies.hours"), _RATES),
    "traffic": dict.fromkeys(("forecast", "past_days", "csv", "file"), "history") | _TOKENS,
    "operating_point.prefill": _SHARE,
    "operating_point.decode": _LOAD | _SHARE,
    "operating_point.mixed": _LOAD | _SHARE,
}

OTHER_ENGINES = ("trtllm", "trt_llm", "tensorrt_llm", "tensorrt", "lmdeploy", "tgi", "llama.cpp", "ollama", "mlc_llm")

OTHER_NAMES = {  # of two keys for one field the later one here says it better
    # vLLM
    "tensor_parallel_size": "attention_tp",
    "max_num_seqs": "max_requests",
    "max_len": "max_request_tokens",
    "max_length": "max_request_tokens",
    "max_seq_len": "max_request_tokens",
    "max_model_len": "max_request_tokens",
    "max_num_batched_tokens": "max_batch_tokens",
    "num_speculative_tokens": "draft_tokens",
    "num_redundant_experts": "redundant_experts",
    "dtype": "precision",
    "kv_dtype": "kv_precision",
    "kv_cache_dtype": "kv_precision",
    "quantization": "precision",
    # SGLang
    "tp": "attention_tp",
    "tp_size": "attention_tp",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "ep_num_redundant_experts": "redundant_experts",
    "max_running_requests": "max_requests",
    "speculative_num_steps": "draft_tokens",
    "context_length": "max_request_tokens",
    "max_total_tokens": "max_kv_tokens",
    "max_prefill_tokens": "max_batch_tokens",
    "chunked_prefill_size": "max_batch_tokens",
    # TensorRT-LLM
    "batch_size": "max_requests",
    "max_batch_size": "max_requests",
    "max_num_tokens": "max_batch_tokens",
    # every engine
    "served_model_name": "name",
    "model_path": "checkpoint",
    "path": "checkpoint",
    # Kubernetes
    "replicas": "units",
    "unschedulable": "cordoned",
    "cpu": "cpus",
    "imagePullSecrets": "image_pull_secrets",
    "hostPath": "host_path",
    "mountPath": "mount_path",
    "persistentVolumeClaim": "claim",
    "pvc": "claim",
    "claimName": "claim",
    "nodeSelector": "node_selector",
    "hostNetwork": "host_network",
    "priorityClassName": "priority_class",
    "runtimeClassName": "runtime_class",
    "schedulerName": "scheduler_name",
    "tolerationSeconds": "seconds",
    "queueName": "queue",
    "shm_size": "shared_memory",
    # Windows of cron jobs and calendars
    "tz": "timezone",
    "time_zone": "timezone",
    "timeZone": "timezone",
    "start": "at",
    "begin": "at",
    "from": "at",
}

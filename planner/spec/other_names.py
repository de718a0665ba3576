"""What our fields are called elsewhere, for "did you mean": who writes a spec has flags of an engine at hand.

`OTHER_NAMES` mean the same number or word. What has no counterpart here, such as `gpu_memory_utilization`, or follows
from ours, such as `data_parallel_size`, stays an unknown key, with the reason in `WHY_NOT`; so do the sections that no
pass reads yet.

Sources: github.com/vllm-project/vllm vllm/engine/arg_utils.py; github.com/sgl-project/sglang
python/sglang/srt/server_args.py; Kubernetes' Node, Pod and Container.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.facts.terms import PHASES, Overlap, Phase
from planner.problems.fix import close_to
from planner.spec.container_resources import GPU_COUNTS, GPU_RESOURCES
from planner.spec.declared import place_of
from planner.spec.meant import truth
from planner.spec.phase import MAX_ATTENTION_TP
from planner.spec.schema import Spec

__all__ = [
    "KUBERNETES_KEYS",
    "OTHER_ENGINES",
    "as_we_say",
    "is_not_planned_yet",
    "of_the_server",
    "overlap_said_by_flag",
    "qualifiers_of",
    "said_better",
    "said_by_flag",
    "said_by_object",
    "unwrapped",
    "value_as_we_say",
    "what_instead_of",
    "why_not_so",
    "why_we_have_no",
]

OTHER_CURRENCY = re.compile(r"cost\.(?!usd_)[a-z]{3}_per_(gpu|node)_hour")
TENSOR_FLAGS = ("tensor_parallel_size", "tp_size", "tp")
DATA_FLAGS = ("data_parallel_size", "dp_size", "dp")
KUBERNETES_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")  # of any object: a spec is none


def said_by_object(key: str, value: Any) -> Mapping[str, Any]:
    """What one of the keys of a Kubernetes object would be as fields of a spec: path -> value."""
    if key == "apiVersion":
        return {"version": 1}
    section = value if isinstance(value, dict) else {}
    if key == "metadata":
        meant = {"name": "name", "namespace": "kubernetes.namespace"}
        return {path: section[each] for each, path in meant.items() if each in section}
    ours = (each for each in section if close_to(each, list(Spec.model_fields), cutoff=0.6))
    return {each: section[each] for each in ours} if key == "spec" else {}


def said_by_flag(key: str, phase: Mapping[str, Any]) -> tuple[Mapping[str, int], str] | None:
    """Return what a flag of tensor or data parallelism says among the keys of its phase, and why.

    SGLang's `tp-size` counts all GPUs where attention is data-parallel inside it, so that attention has
    `tp-size` / `dp-size` of them. vLLM's `data-parallel-size` counts groups, each of `tensor-parallel-size` GPUs. None
    where the flag means what it means alone; nothing is said where our defaults say it already.
    """
    flags = {_plain(each): value for each, value in phase.items()}
    tensor, data = _count(flags, TENSOR_FLAGS), _count(flags, DATA_FLAGS)
    has_ep_size = any(each == "ep_size" or OTHER_NAMES.get(each) == "ep_size" for each in flags)
    is_inside = bool(flags.get("enable_dp_attention")) or ("data_parallel_size" not in flags and data is not None)
    if _plain(key) in TENSOR_FLAGS and tensor is not None and is_inside and tensor % (data or tensor) == 0:
        attention_tp = tensor // (data or tensor)
        said = {} if has_ep_size else {"ep_size": tensor}
        said |= {"attention_tp": attention_tp} if attention_tp > 1 and "attention_tp" not in flags else {}
        if data == 1:
            return said, f"{key} counts the GPUs of a unit, and beside dp_size 1 all of them share attention"
        return said, f"attention_tp is {key} / dp_size, {attention_tp} beside data-parallel attention"
    if _plain(key) in TENSOR_FLAGS and tensor is not None and tensor > MAX_ATTENTION_TP:
        reason = (
            f"it is the number of GPUs of a unit, which is ep_size here, and {tensor} of them cannot share attention"
        )
        return {} if has_ep_size else {"ep_size": tensor}, reason
    if _plain(key) in DATA_FLAGS and data is not None and not has_ep_size and not (is_inside and tensor):
        return {"ep_size": data * (tensor or 1)}, "experts are spread over all GPUs of a unit, which ep_size counts"
    return None


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


def overlap_said_by_flag(phase: Phase, key: str, value: Any) -> Overlap | None:
    """Return the overlap that an engine's flag turns on in `phase`; None for other keys, or where it is off."""
    plain = _plain(key)
    if plain not in OVERLAP_FLAGS or not (value is True or truth(value)):
        return None
    return "dual_batch" if plain == "enable_dbo" else OVERLAP_OF_PHASE[phase]


def qualifiers_of(key: str) -> frozenset[str]:
    """Return the words that make another notion of a key: `min_units` is no misspelt `units`."""
    return QUALIFIERS.intersection(_plain(key).casefold().split("_"))


def of_the_server(key: str, value: Any, phase: Mapping[str, Any]) -> tuple[int | None, str] | None:
    """Return what a rank has of a limit of SGLang's that counts for a whole server, and why; None for other keys.

    None as a number where the phase does not say how many ranks, or groups of them, share it. One that is too small to
    share can only be a rank's own.
    """
    if _plain(key) not in OF_THE_SERVER:
        return None
    flags = {_plain(each): number for each, number in phase.items()}
    ep_size, attention_tp = phase.get("ep_size"), phase.get("attention_tp", 1)
    if "ep_size" not in flags and (count := _count(flags, DATA_FLAGS)):
        ep_size, attention_tp = count, 1  # so many groups, whatever the GPUs of each
    why = (
        f"SGLang's {_plain(key)} is for the whole server, tidemill's for each of its dp_size ranks or attention groups"
    )
    if not all(type(each) is int and each > 0 for each in (value, ep_size, attention_tp)):
        return None, why
    dp_size = max(1, ep_size // attention_tp)
    return (value // dp_size, why) if value >= dp_size else None


def _count(flags: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((flags[name] for name in names if type(flags.get(name)) is int and flags[name] > 0), None)


def as_we_say(key: str, section: str = "") -> str | None:
    """Our name of a field that is called `key` elsewhere, as a flag (`--max-num-seqs`) or as a key of `section`."""
    return NAMES_IN.get(section, {}).get(_plain(key)) or OTHER_NAMES.get(_plain(key))


def said_better(key: str, beside: Iterable[str], section: str) -> str | None:
    """Return the key beside `key` in `section` that says the same field better: vLLM's quantization, beside dtype."""
    ours, names = as_we_say(key, section), [*OTHER_NAMES, *NAMES_IN.get(section, ())]
    rivals = [each for each in beside if as_we_say(each, section) == ours] if ours else []
    best = max(rivals, key=lambda each: names.index(_plain(each)), default=key)
    return None if best == key else best


def why_we_have_no(path: str) -> str | None:
    """Why nothing here is called so, where that takes more than a list of what there is."""
    if OTHER_CURRENCY.fullmatch(path):
        return "GPUs cost US dollars here, and currency is that of prices alone"
    return NOT_YET.get(place_of(path)) or WHY_NOT.get(_plain(path.rpartition(".")[2]))


def what_instead_of(path: str) -> str | None:
    """What to do instead of writing this key, where to leave it out would lose what was meant."""
    return "write usd_per_gpu_hour, in US dollars" if OTHER_CURRENCY.fullmatch(path) else INSTEAD.get(place_of(path))


def why_not_so(path: str, value: Any) -> str | None:
    """Why this value, which is to come, is none yet."""
    return NOT_YET.get(f"{path}: {value}")


def is_not_planned_yet(path: str, value: Any) -> bool:
    """Whether the field at `path` will take `value` one day, so that no other value is what was meant."""
    return _plain(str(value)).casefold() in NOT_YET_VALUES.get(path.rpartition(".")[2], ())


def value_as_we_say(path: str, value: Any) -> Any:
    """Return our word for what is called `value` elsewhere; `value` itself where it is none of these."""
    phase = next((each for each in PHASES if path == f"{each}.overlap"), None)
    is_on = value is True and phase == "decode"
    if phase and (is_on or _plain(str(value)).casefold() in OVERLAP_WORDS):
        return OVERLAP_OF_PHASE[phase]
    return OTHER_VALUES.get(path.rpartition(".")[2], {}).get(_plain(str(value)).casefold(), value)


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


QUALIFIERS = frozenset(("min", "max", "minimum", "maximum", "initial", "target"))

# SGLang divides these by dp_size where attention is data-parallel, as it always is here. Sources:
# github.com/sgl-project/sglang 001ccef0 python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py
# (max_running_requests), 469c63e5 python/sglang/srt/server_args.py (chunked_prefill_size).
OF_THE_SERVER = ("max_running_requests", "chunked_prefill_size")

# Two micro-batches hide little of a decode step, as W102 says. vLLM's flag has no other form in any phase.
OVERLAP_OF_PHASE: Mapping[Phase, Overlap] = {"prefill": "dual_batch", "decode": "five_stage", "mixed": "dual_batch"}
OVERLAP_WORDS = ("tbo", "two_batch", "two_batch_overlap")
OVERLAP_FLAGS = ("enable_two_batch_overlap", "two_batch_overlap", "tbo", "enable_dbo")

LENGTHS = ("input_len", "output_len", "input_length", "output_length", "prompt_len", "isl", "osl")
NIC_COUNTS = ("nics", "num_nics", "nics_per_node")

_WINDOW = "a window lasts until the next one starts"
_DRAFTS = "draft_tokens of decode says how many tokens the model's MTP module drafts in a step"
_PULLED = "a node pulls only images that it lacks, so each build needs its own tag or digest"
_SCALED = "units are not scaled with load; a schedule sets their number by time of day, from traffic with windows: auto"
_LATENCY = "a service promises ttft_ms and tpot_ms, under slo"
_NICS = "NICs are not counted: gpus_per_nic of an own gpu says how many GPUs share one"
_GPUS = "a unit has ep_size GPUs, one for each rank, and its pods ask for them by themselves"
_MOUNTED = "pods mount folders of their nodes, and claims"

_PATCHED = "rendered objects are changed by patches"
_LENGTHS = "traffic counts the tokens of a day, and operating_point says how long requests are"

# Keys and values of the spec that are to come.
NOT_YET = {
    "throughput": "it is predicted at operating_point, and not written",
    "kubernetes.hostPath": "a folder of the nodes is one of volumes, with the mount_path where pods find it",
    "kubernetes.patches.path": "a patch stands in the spec itself, and no file is read",
    **dict.fromkeys((f"{place}.{key}" for place in ("cluster", "cluster.gpu") for key in NIC_COUNTS), _NICS),
    "PHASE.resources": _GPUS,
    **dict.fromkeys((f"PHASE.{key}" for key in GPU_COUNTS), _GPUS),
    **dict.fromkeys((f"kubernetes.resources.{key}" for key in GPU_RESOURCES), _GPUS),
    **dict.fromkeys((f"kubernetes.resources.unit.{key}" for key in GPU_RESOURCES), _GPUS),
    "kubernetes.volumes.name": "a volume is known by its mount_path",
    "kubernetes.volumes.nfs": _MOUNTED,
    "kubernetes.volumes.csi": _MOUNTED,
    "cluster.gpu.fp4_tflops": "an own gpu has rates for FP8 and BF16, and its FP4 is planned at that of FP8",
    **dict.fromkeys((f"traffic.{key}" for key in LENGTHS), _LENGTHS),
    "kubernetes.service": _PATCHED,
    "kubernetes.labels": _PATCHED,
    "cluster.nodes.zone": "a zone is none of the domains in which nodes fail together here",
    "cost.usd_per_node_hour": "a GPU's hour is what counts: a node's, divided by its GPUs",
    "schedule.windows.end": _WINDOW,
    "schedule.windows.to": _WINDOW,
    "schedule.windows.until": _WINDOW,
    "schedule.windows.duration": _WINDOW,
}

_SHARED = "write gpus_per_nic, which is gpus_per_node / NICs of a node, below an own gpu"
_MOUNT = "write the claim that has it, or the host_path of its mount"
INSTEAD = {
    "kubernetes.service": "write a patch, for example patches: [{kind: Service, patch: {spec: {type: NodePort}}}]",
    "kubernetes.labels": "write a patch of each kind, "
    "for example patches: [{kind: Deployment, patch: {metadata: {labels: {team: chat}}}}]",
    "cluster.nodes.zone": "write rack, leaf or power, if the nodes of a zone share one",
    "cost.usd_per_node_hour": "write usd_per_gpu_hour, which is usd_per_node_hour / gpus_per_node",
    "schedule.windows.units": "write how many units of each phase, as prefill_units: ... and decode_units: ...",
    "cluster.rdma": "write kubernetes.rdma, for example {resource: rdma/hca, count: 8}",
    "kubernetes.volumes.nfs": _MOUNT,
    "kubernetes.volumes.csi": _MOUNT,
    **dict.fromkeys((f"{place}.{key}" for place in ("cluster", "cluster.gpu") for key in NIC_COUNTS), _SHARED),
    "kubernetes.patches.path": "write what is in the file as a mapping below patch",
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

_DP = "dp_size is ep_size / attention_tp, since each rank or attention group serves its own requests"
_EP = "experts are always spread over all GPUs of a unit (ep_size)"
_MEMORY = "the plan computes each part of memory and gives the rest to KV"
_OVERLAP = "overlap says it: dual_batch in prefill, five_stage in decode"
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
    "enable_dbo": "overlap says it: dual_batch is what this flag turns on",
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

# Section -> names that mean a field of that section only. Sources: github.com/ai-dynamo/dynamo, DynamoGraphDeployment
# (backendFramework); price lists of tokens, where those of the input that no cache has are the input's.
_PRICES = {
    **dict.fromkeys(("input", "prompt", "input_cache_miss", "cache_miss"), "input_miss"),
    **dict.fromkeys(("cached_input", "input_cached", "input_cache_hit", "cache_hit"), "input_hit"),
    **dict.fromkeys(("completion", "generated"), "output"),
}
_LOAD = dict.fromkeys(("batch_size", "batch", "concurrency"), "requests")
NAMES_IN: Mapping[str, Mapping[str, str]] = {
    "cluster.nodes": dict.fromkeys(("gpu_count", "num_gpus", "gpus_per_node"), "gpus"),
    "kubernetes": {"ns": "namespace"},
    "": dict.fromkeys(("backend", "backend_framework", "backendFramework", "framework"), "engine"),
    "PHASE": dict.fromkeys(("workers", "num_workers"), "units"),
    "cluster.gpu": {"fp8": "fp8_tflops", "bf16": "bf16_tflops", "bandwidth": "memory_bandwidth"},
    "cost.prices": _PRICES,
    "operating_point.decode": _LOAD,
    "operating_point.mixed": _LOAD,
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

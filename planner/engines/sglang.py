"""Run units on SGLang 0.5.23: a unit is one server over all its pods, and SGLang's router finds servers by label.

SGLang's options in terms of the plan, with DeepSeek's decode unit of 144 GPUs as the worked example:
    --tp-size                 GPUs of the unit                                       144
    --attn-dp-size            groups that each own their requests (DP size)          144
    --ep-size                 GPUs that routed experts are spread over               144
    --max-running-requests    requests of the server: 128 of each group x 144        18,432
    --chunked-prefill-size    tokens of a step of the server: those of a group x groups
    --max-total-tokens        tokens of KV of one rank
    --mem-fraction-static     share of a GPU's free memory for weights and KV

`--init-expert-location` names the file of the expert map, with a row for each layer (`facts/map_files.py`). Experts
stay there, because SGLang does not rebalance by default. `--ep-dispatch-algorithm dynamic` draws a replica for each
token; `static`, the default, draws one for each rank once.

`dual_batch` and `five_stage` both become two-batch overlap: in prefill one micro-batch computes while the other
dispatches, in decode each layer is split into the five stages that DeepSeek describes.

A unit that is one attention group dispatches nothing: its GPUs compute the same tokens and sum their experts' results.

The first pod of a unit answers requests. The others answer `/health` once all ranks have joined. On SIGTERM the first
finishes its requests and then ends all pods.

Sources: github.com/sgl-project/sglang 0.5.23, python/sglang/srt: arg_groups/parallel_hook.py (sizes, dispatch),
arg_groups/memory_hook.py, model_executor/pool_configurator.py (requests), layers/moe/token_dispatcher/deepep.py,
layers/moe/ep_moe/layer.py, arg_groups/moe_hook.py and layers/moe/moe_runner (what computes dispatched experts),
batch_overlap/operations_strategy.py, arg_groups/speculative_hook.py and disaggregation/prefill.py (drafts),
entrypoints/http_server.py and engine.py, managers/tokenizer_manager.py (drain), observability/metrics_collector.py;
sglang-router 0.3.2, sglang_router/router_args.py and the routes of its running router.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from planner.engines.container import (
    CACHES,
    LEADER,
    MAP_FILE,
    POD_ADDRESS,
    WORKER,
    Container,
    PhaseFacts,
    Probe,
)
from planner.engines.own_options import attention_options, own_options
from planner.engines.routers import discovery_options, health_check_options
from planner.facts import names
from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.quantisation import KvDtype, kv_dtype
from planner.facts.terms import Phase, Precision
from planner.layout.dispatch import dispatched_tokens
from planner.layout.unit import Unit
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec

HTTP_PORT = 30000
BOOTSTRAP_PORT = 8998  # of a prefill server, where decode asks which prefill ranks have a request's KV
RENDEZVOUS_PORT = 20000
ROUTER_METRICS_PORT = 29000
HEALTH_SECONDS = 30  # /health generates a token and waits up to 20 s for it

# ID, name, role and key of an API key for the router. Once the router has any key, only administrators' keys can add
# and remove servers. This is a user's key, so nobody can, not even somebody who reads the key here.
CLOSED = "closed:closed:user:closed"

DEEPEP_MODES: dict[Phase, Literal["normal", "low_latency", "auto"]] = {
    "prefill": "normal",
    "decode": "low_latency",
    "mixed": "auto",
}
# precision -> kernels for experts whose rows come by DeepEP. For FP8 (DeepGEMM) and INT4 (CUTLASS) SGLang's own choice
# is right. NVFP4 has kernels for low-latency dispatch only.
RUNNERS: dict[Precision, str] = {"bf16": "deep_gemm", "fp4": "flashinfer_cutedsl"}
DISPATCHED_IN: dict[Precision, str] = {"fp8": "fp8", "fp8_mxfp4": "fp8"}  # rows of other precisions travel in BF16
QUANTIZATION: dict[Precision, str] = {
    "fp8": "fp8",
    "fp4": "modelopt_fp4",
    "w4a8": "w4afp8",
}  # for other precisions and methods SGLang finds out from the checkpoint
KV_DTYPES: dict[KvDtype, str] = {"bf16": "bf16", "fp8": "fp8_e4m3"}

# The address that a pod gives to other pods for KV and messages. Without it SGLang would look for a route to a public
# address.
OWN_ADDRESS = {"SGLANG_HOST_IP": POD_ADDRESS}

METRICS = {
    "num_requests_running": "sglang:num_running_reqs",
    "num_requests_waiting": "sglang:num_queue_reqs",
    "kv_cache_usage_perc": "sglang:token_usage",
    "time_to_first_token_seconds": "sglang:time_to_first_token_seconds",
    "inter_token_latency_seconds": "sglang:inter_token_latency_seconds",
    "e2e_request_latency_seconds": "sglang:e2e_request_latency_seconds",
    "prompt_tokens_total": "sglang:prompt_tokens_total",
    "generation_tokens_total": "sglang:generation_tokens_total",
}

Option = tuple[str, ...]  # an option's name and values


def unit_container(spec: Spec, unit: Unit, known: PhaseFacts, image: str) -> Container:
    """Return the container that runs SGLang in each pod of `unit`."""
    phase, model = spec.phase(unit.phase), ENGINE_MODELS["sglang"][spec.engine_version or ""][known.model_type]
    options = (
        *_model(spec, phase, known),
        *_group_options(unit),
        *_parallel(phase, unit),
        *_experts(phase, unit),
        *attention_options(spec, unit.phase),
        *_memory(phase, unit.phase, known, model.page_tokens),
        *(_state_options(phase) if model.keeps_states else ()),
        *_draft_options(spec),
        *_transfer_options(spec, unit.phase),
        ("--watchdog-timeout", str(known.start_s)),  # time limit of a step, because the first step compiles kernels
        ("--enable-metrics",),
        *own_options(spec.engine_args(unit.phase)),
    )
    ports = {"http": HTTP_PORT, "rendezvous": RENDEZVOUS_PORT}
    return Container(
        image=image,
        command=("python3", "-m", "sglang.launch_server"),
        args=_flat(options),
        ports=ports | ({"bootstrap": BOOTSTRAP_PORT} if unit.phase == "prefill" else {}),
        liveness=Probe("/health", "http", HEALTH_SECONDS),
        readiness=Probe("/health", "http", HEALTH_SECONDS),
        start_s=known.start_s,
        metrics=Probe("/metrics", "http"),
        metric_names=METRICS,
        env=CACHES
        | OWN_ADDRESS
        | _warm_up_variables(known)
        | _kernel_cache_variables(spec)
        | _deep_ep_variables(phase, unit.phase),
        map_file=MAP_FILE,
        annotations={"sglang.ai/bootstrap-port": str(BOOTSTRAP_PORT)} if unit.phase == "prefill" else {},
    )


def router(spec: Spec, start_s: int, image: str) -> Container:
    """Return the container of SGLang's router, which finds units' first pods by label and calls the ready ones."""
    options: tuple[Option, ...] = (
        ("--host", POD_ADDRESS),
        ("--port", str(spec.gateway.port)),
        *([] if spec.mixed is not None else [("--pd-disaggregation",)]),
        *discovery_options(spec, HTTP_PORT, names.first_pod_label(spec.kubernetes.unit_kind)),
        *health_check_options(start_s),
        ("--max-concurrent-requests", str(_capacity(spec))),
        ("--queue-size", str(spec.gateway.max_queued_requests * _num_groups(spec))),
        ("--control-plane-api-keys", CLOSED),
        ("--prometheus-host", POD_ADDRESS),
        ("--prometheus-port", str(ROUTER_METRICS_PORT)),
    )
    return Container(
        image=image,
        command=("python3", "-m", "sglang_router.launch_router"),
        args=_flat(options),
        ports={"http": spec.gateway.port, "metrics": ROUTER_METRICS_PORT},
        liveness=Probe("/liveness", "http"),
        readiness=Probe("/readiness", "http"),
        start_s=start_s,
        metrics=Probe("/metrics", "metrics"),
        metric_names={},
        env=CACHES,
    )


def captured_batches(max_requests: int) -> list[int]:
    """Return the batch sizes to capture CUDA graphs for, up to `max_requests`. Small sizes are closer together.

    Up to 512 requests these are at most 51 sizes, for which memory is planned.
    """
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, 512, 16), *range(512, max_requests, 64))
    return [size for size in sizes if size < max_requests] + [max_requests]


def _model(spec: Spec, phase: PhaseSpec, known: PhaseFacts) -> Iterator[Option]:
    yield "--model-path", known.model_path
    if known.brings_code:
        yield ("--trust-remote-code",)
    yield "--served-model-name", spec.served_model_name
    yield "--context-length", str(phase.max_request_tokens)
    yield "--dtype", "bfloat16"
    if phase.precision in QUANTIZATION and known.other_method is None:
        yield "--quantization", QUANTIZATION[phase.precision]
    yield "--kv-cache-dtype", KV_DTYPES[kv_dtype(phase.precision, phase.kv_precision)]


def _group_options(unit: Unit) -> Iterator[Option]:
    """Yield the options for the server's address, and those by which the pods of a unit find each other."""
    yield "--host", POD_ADDRESS
    yield "--port", str(HTTP_PORT)
    if len(unit.nodes) > 1:
        yield "--nnodes", str(len(unit.nodes))
        yield "--node-rank", WORKER
        yield "--dist-init-addr", f"{LEADER}:{RENDEZVOUS_PORT}"


def _parallel(phase: PhaseSpec, unit: Unit) -> Iterator[Option]:
    num_gpus = unit.ranks
    yield "--tp-size", str(num_gpus)
    yield "--ep-size", str(num_gpus)
    if num_gpus == phase.attention_tp:
        return
    yield "--attn-dp-size", str(num_gpus // phase.attention_tp)
    yield "--moe-dense-tp-size", "1"  # dense layers and the head are whole on each GPU, as planned
    yield ("--enable-dp-lm-head",)


def _experts(phase: PhaseSpec, unit: Unit) -> Iterator[Option]:
    yield "--ep-num-redundant-experts", str(phase.redundant_experts)
    yield "--init-expert-location", MAP_FILE
    yield "--ep-dispatch-algorithm", "dynamic"
    if unit.ranks == phase.attention_tp:
        return
    yield "--moe-a2a-backend", "deepep"
    yield "--deepep-mode", DEEPEP_MODES[unit.phase]
    yield "--deepep-dispatcher-output-dtype", DISPATCHED_IN.get(phase.precision, "bf16")
    if phase.precision in RUNNERS:
        yield "--moe-runner-backend", RUNNERS[phase.precision]
    if phase.overlap != "none":
        yield ("--enable-two-batch-overlap",)


def _memory(phase: PhaseSpec, name: Phase, known: PhaseFacts, page_tokens: int) -> Iterator[Option]:
    groups = phase.ep_size // phase.attention_tp
    yield "--mem-fraction-static", f"{known.static_fraction:.4f}"
    yield "--max-total-tokens", str(known.kv_tokens)
    yield "--page-size", str(page_tokens)
    yield "--max-running-requests", str(phase.max_requests * groups)
    yield "--chunked-prefill-size", str(-(-phase.max_batch_tokens // page_tokens) * page_tokens * groups)
    yield "--max-prefill-tokens", str(phase.max_batch_tokens)
    if name != "prefill":
        yield "--cuda-graph-bs-decode", *map(str, captured_batches(phase.max_requests))


def _state_options(phase: PhaseSpec) -> Iterator[Option]:
    """Yield the options that keep one state of linear layers per request, as memory is planned.

    With a prefix cache SGLang would keep 3 to 5 states per request, and take their memory from the KV.
    """
    yield ("--disable-radix-cache",)
    yield "--max-mamba-cache-size", str(phase.max_requests * (phase.ep_size // phase.attention_tp))


def _draft_options(spec: Spec) -> Iterator[Option]:
    """Yield the options for drafting tokens one after the other with the checkpoint's own MTP module.

    Prefill has these options too: it computes the module's KV of prompts, and sends it with the first draft's input.
    """
    if spec.draft_tokens:
        yield "--speculative-algorithm", "EAGLE"
        yield "--speculative-num-steps", str(spec.draft_tokens)
        yield "--speculative-eagle-topk", "1"
        yield "--speculative-num-draft-tokens", str(spec.draft_tokens + 1)  # the drafts and the token before these


def _transfer_options(spec: Spec, phase: Phase) -> Iterator[Option]:
    """Yield the options for KV transfer from prefill to decode; a mixed unit has none."""
    if phase == "mixed":
        return
    yield "--disaggregation-mode", phase
    yield "--disaggregation-transfer-backend", "mooncake"
    yield "--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)
    if spec.kubernetes.nics is not None and spec.kubernetes.nics.hca:
        yield "--disaggregation-ib-device", ",".join(spec.kubernetes.nics.hca)


def _warm_up_variables(known: PhaseFacts) -> dict[str, str]:
    """Return the variable with the time limit of SGLang's warm-up request, during which SGLang compiles kernels."""
    return {"SGLANG_WARMUP_TIMEOUT": str(known.start_s)}


def _kernel_cache_variables(spec: Spec) -> dict[str, str]:
    """Return the variables that name folders for compiled kernels; empty if the spec keeps no kernels.

    SGLang derives DeepGEMM's own variable from one of them.
    """
    if spec.kubernetes.kernel_cache is None:
        return {}
    folder = names.KERNEL_CACHE
    return {"SGLANG_CACHE_DIR": f"{folder}/sglang", "SGLANG_DG_CACHE_DIR": f"{folder}/deep_gemm"}


def _deep_ep_variables(phase: PhaseSpec, name: Phase) -> dict[str, str]:
    """Return the variable that sizes low-latency dispatch, in tokens per rank; empty without such dispatch."""
    if name == "prefill" or phase.ep_size == phase.attention_tp:
        return {}
    return {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": str(dispatched_tokens(phase, "sglang"))}


def _num_groups(spec: Spec) -> int:
    """Return the number of attention groups in all decode or mixed units, which generate tokens."""
    name = spec.phases[-1]
    phase = spec.phase(name)
    return spec.num_units(name) * phase.ep_size // phase.attention_tp


def _capacity(spec: Spec) -> int:
    return spec.phase(spec.phases[-1]).max_requests * _num_groups(spec)


def _flat(options: Sequence[Option]) -> tuple[str, ...]:
    return tuple(word for option in options for word in option)
